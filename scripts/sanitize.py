"""One small product of every type, tile and layout, to be run under compute-sanitizer.

PYTHONPATH=src compute-sanitizer --tool memcheck python3 scripts/sanitize.py
"""

import itertools

import torch

from tilesmith import device
from tilesmith.bench.suites import random_tensor
from tilesmith.kernels import simt
from tilesmith.prepared import prepare
from tilesmith.problem import Problem

SHAPES = [(130, 40, 261), (128, 32, 256)]  # with and without edges


def main() -> None:
    launches = 0
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.int8)
    for dtype, (m, k, n), transposed in itertools.product(dtypes, SHAPES, (False, True)):
        shapes = ((2, k, m), (n, k)) if transposed else ((2, m, k), (k, n))
        a, b = (random_tensor(shape, dtype, "cuda") for shape in shapes)
        if transposed:
            a, b = a.mT, b.mT
        for plan in simt.candidates(Problem.of(a, b), device.installed(0)):
            prepare(plan, 0)(a, b)
            launches += 1
    torch.cuda.synchronize()
    print(f"{launches} launches")


if __name__ == "__main__":
    main()
