"""Computes the products of tests/support/recorded_products.py on the H200 of this machine, and writes their results.

    PYTHONPATH=src:tests/support python3 scripts/record_products.py [FILE]

Each is computed twice, and must give the same bits.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from recorded_products import FILE, PRODUCTS, Recorded, bits

from tilesmith.bench.errors import error
from tilesmith.core.device import installed
from tilesmith.runtime import cubins
from tilesmith.runtime.executor import compiled


def main() -> None:
    kernels = {launch.kernel for product in PRODUCTS for launch in product.on_cpu()[0].launches}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda kernel: cubins.cubin(kernel, installed(0).arch), kernels))
    found = {product.name: bits(computed(product)) for product in PRODUCTS}
    file = sys.argv[1] if len(sys.argv) > 1 else FILE
    np.savez_compressed(file, **found)  # type: ignore[arg-type]
    print(f"{len(found)} products are in {file}")


def computed(product: Recorded) -> torch.Tensor:
    a, b = (_on_gpu(each) for each in product.operands())
    plan = product.planned(a, b, installed(0))
    run = compiled(plan, 0)
    first, second = run(a, b), run(a, b)
    if not np.array_equal(bits(first.cpu()), bits(second.cpu())):
        raise SystemExit(f"{product.name}: two runs differ")
    shown = f"norm {error(first, a, b).norm:.1e}" if product.values != "special" and a.is_floating_point() else ""
    print(f"{product.name:24} {plan.name:40} {shown}")
    return first.cpu()


def _on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """With the same strides."""
    moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    return moved.copy_(tensor)


if __name__ == "__main__":
    main()
