"""The first call of a new process, timed there: import of the package, compilation or the cache, loading, launch."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tilesmith.bench.results import OURS, TORCH
from tilesmith.bench.suites import Product

_ROUNDS: Final = 3
_PROGRAM: Final = """
import time, torch
a, b = (torch.randn(size, dtype=torch.{dtype}, device="cuda") for size in (({m}, {k}), ({k}, {n})))
torch.cuda.synchronize()
start = time.perf_counter()
{call}
torch.cuda.synchronize()
print(time.perf_counter() - start)
"""
_CALLS: Final = {OURS: "import tilesmith; tilesmith.matmul(a, b)", TORCH: "torch.matmul(a, b)"}


def first_calls(product: Product) -> dict[str, list[float]]:
    """Milliseconds of several first calls of ours and of torch's, each in a process that has a CUDA context. At a cold
    start each has an empty cache of its own; before warm ones there is a call that fills it."""
    found: dict[str, list[float]] = {}
    for name, call in _CALLS.items():
        program = _PROGRAM.format(dtype=product.dtype, m=product.m, k=product.k, n=product.n, call=call)
        with tempfile.TemporaryDirectory() as folder:
            if product.clock == "cold start":
                found[name] = [_milliseconds(program, Path(folder) / str(i)) for i in range(_ROUNDS)]
            else:
                _, *found[name] = (_milliseconds(program, Path(folder)) for _ in range(1 + _ROUNDS))
    return found


def _milliseconds(program: str, cache: Path) -> float:
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    # NVRTC has a cache of its own, which would make a second cold start look fast.
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(cache), "CUDA_CACHE_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"a first call failed: {done.stderr.strip() or done.returncode}")
    return float(done.stdout) * 1e3
