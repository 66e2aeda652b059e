"""Results that look like those of a run and are none: made up, from figures near those of docs/results.md.

`python tests/support/made_up_results.py` writes tests/data/bench.json.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tilesmith.bench.results import AGAIN, OURS, TORCH, Bound, Competitor, Entry, Environment, Results, State

RECORDED: Final = Path(__file__).parent.parent / "data" / "bench.json"

_BANDWIDTH: Final = 4.8e12
_PEAKS: Final = {"bf16": 989e12, "fp16": 989e12, "fp32": 330e12, "fp64": 67e12}
_CLASSES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "int8": "int"}
_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int8": 1}
_NORMS: Final = {"bfloat16": 1.7e-3, "float16": 2.1e-4, "float32": 1.1e-6}
_IN_TF32: Final = "torch tf32"


@dataclass(frozen=True, slots=True)
class _Product:
    suite: str
    name: str
    sizes: tuple[int, int, int]  # M, K, N
    dtype: str
    plan: str
    ours_us: float
    torch_us: float | None
    norm: float = 1.0  # ours by torch's
    batch: int = 0
    graph_us: tuple[float, float] | None = None  # ours, torch's
    tf32_us: float | None = None
    a_layout: str = "rows"


_PAIRS, _WIDE_PAIRS = "hopper 128x128 cluster 2", "hopper 128x256 cluster 2"

_PRODUCTS: Final = (
    _Product("seeds", "square", (4096, 4096, 4096), "float32", _PAIRS, 618, 2692, 0.18, tf32_us=361),
    _Product("seeds", "large K", (2048, 8192, 4096), "float32", _PAIRS, 642, 2669, 0.2, tf32_us=358),
    _Product(
        "seeds",
        "transposed A",
        (2048, 8192, 4096),
        "float32",
        _PAIRS,
        640,
        2618,
        0.2,
        tf32_us=356,
        a_layout="transposed",
    ),
    _Product("seeds", "tiny K", (32768, 64, 32768), "float32", "hopper 128x256", 1128, 4034, 1.9, tf32_us=1290),
    _Product("seeds", "irregular", (8205, 2949, 5921), "float32", "hopper 128x192 cluster 2", 1295, 6464, 0.2),
    _Product("aligned", "square 4096", (4096, 4096, 4096), "bfloat16", _WIDE_PAIRS, 174.2, 175.9),
    _Product("aligned", "square 8192", (8192, 8192, 8192), "bfloat16", _WIDE_PAIRS, 1370.6, 1392.8),
    _Product("aligned", "square 16384", (16384, 16384, 16384), "bfloat16", _WIDE_PAIRS, 12448, 12759),
    _Product("aligned", "long rows", (8192, 1024, 8192), "float16", _WIDE_PAIRS, 186, 198.9),
    _Product("aligned", "wide model", (4096, 14336, 4096), "float16", _WIDE_PAIRS, 628.6, 610),
    _Product("odd", "GPT-2 vocabulary", (2048, 1600, 50257), "bfloat16", _WIDE_PAIRS, 590, 2480.5),
    _Product("odd", "one more", (4097, 4097, 4097), "float16", "hopper 128x192 cluster 2", 263.2, 1025.9, 0.82),
    _Product("odd", "odd batch", (1000, 1001, 999), "bfloat16", _WIDE_PAIRS, 388.6, 1066, batch=64),
    _Product("skinny", "1 row", (1, 8192, 8192), "float32", "skinny", 65, 68.2, 0.4),
    _Product("skinny", "16 rows", (16, 8192, 8192), "bfloat16", "hopper 64x16 cluster 2 swap_ab", 34.7, 35.3),
    _Product("skinny", "64 rows", (64, 8192, 8192), "float16", "hopper 64x64 cluster 2 swap_ab", 37.2, 35.7),
    _Product("skinny", "huge K", (256, 524288, 256), "bfloat16", "hopper 128x256 cluster 2 split_k 66", 134.1, 131.9),
    _Product("batched", "batch of 128", (512, 1024, 2048), "bfloat16", _WIDE_PAIRS, 379.7, 386.8, batch=128),
    _Product("batched", "batch of 1024", (128, 64, 128), "float16", "hopper 128x128", 19.7, 20.3, batch=1024),
    _Product("small", "square 128", (128, 128, 128), "float16", "hopper 64x16", 5.3, 5.7, graph_us=(1.95, 2.36)),
    _Product(
        "small", "square 512", (512, 512, 512), "float32", "fp64_mma 32x32x32", 12.3, 16.4, 0.5, graph_us=(9.0, 14.1)
    ),
    _Product("small", "square 2048", (2048, 2048, 2048), "bfloat16", "hopper 128x256", 26.9, 27, graph_us=(23.1, 23.3)),
    _Product("shapes", "4096x4096x4096", (4096, 4096, 4096), "float64", "simt 128x128x4", 6210, 2280),
    _Product("shapes", "4096x4096x4096", (4096, 4096, 4096), "int8", "simt 64x128x8", 4770, None),
)


def made_up(seed: int = 0, *, rounds: int = 20, noise: float = 0.01) -> Results:
    """A run whose every time has this much noise, normal, of its own."""
    return Results(
        environment=Environment(
            date="2026-11-16 12:00",
            command="tilesmith bench all --json bench.json  # made up for tests: nobody ran this",
            gpu="NVIDIA H200",
            driver="580.95",
            versions={
                "tilesmith": "0.1.0",
                "torch": "2.11.0+cu130",
                "CUDA": "13.0",
                "NVRTC": "13.0",
                "Python": "3.12.3",
            },
            host="made up for tests",
            l2="flushed",
        ),
        entries=tuple(
            _entry(product, random.Random(f"{seed} {i}"), rounds, noise) for i, product in enumerate(_PRODUCTS)
        ),
        unfinished=("seeds: huge (65536x65536x65536): it needs more memory than the GPU has free",),
    )


def _entry(product: _Product, draw: random.Random, rounds: int, noise: float) -> Entry:
    precision = _CLASSES[product.dtype]

    def competitor(us: float, precision: str, norm: float | None, graph_us: float | None = None) -> Competitor:
        return Competitor(
            precision=precision,
            samples_ms=tuple(float(f"{us / 1e3 * draw.gauss(1, noise):.5g}") for _ in range(rounds)),
            graph_ms=None if graph_us is None else graph_us / 1e3,
            comp=None if norm is None else float(f"{norm / 3.1:.3g}"),
            norm=None if norm is None else float(f"{norm:.3g}"),
        )

    m, k, n = product.sizes
    batch = max(product.batch, 1)
    flops = 2.0 * batch * m * k * n
    least_bytes = float(batch * (m * k + k * n + m * n) * _BYTES[product.dtype])
    memory_ms = least_bytes / _BANDWIDTH * 1e3
    compute_ms = flops / _PEAKS[precision] * 1e3 if precision in _PEAKS else None
    bound: Bound | None = None if compute_ms is None else "compute" if compute_ms > memory_ms else "memory"

    torch_norm = _NORMS.get(product.dtype)
    graphs = product.graph_us or (None, None)
    competitors = {OURS: competitor(product.ours_us, precision, torch_norm and torch_norm * product.norm, graphs[0])}
    if product.torch_us is not None:
        competitors[TORCH] = competitor(product.torch_us, precision, torch_norm, graphs[1])
        competitors[AGAIN] = competitor(product.torch_us, precision, None)
    if product.tf32_us is not None:
        competitors[_IN_TF32] = competitor(product.tf32_us, "tf32", 2.9e-4)

    hot = product.name == "square 16384"
    sizes = f"{m}x{k}x{n}"
    shape = f"{product.batch}x({sizes})" if product.batch else sizes
    return Entry(
        suite=product.suite,
        name=product.name,
        shape=shape if product.a_layout == "rows" else f"{shape} a transposed",
        m=m,
        k=k,
        n=n,
        batch=product.batch,
        a_layout=product.a_layout,
        b_layout="rows",
        dtype=product.dtype,
        accuracy="fp32" if product.dtype == "float32" else None,
        why="made up for tests",
        plan=product.plan,
        workspace_bytes=2 * 4 * (m * k + k * n) if precision == "fp32" and product.plan.startswith("hopper") else 0,
        flops=flops,
        least_bytes=least_bytes,
        roofline_ms=None if compute_ms is None else max(compute_ms, memory_ms),
        bound=bound,
        competitors=competitors,
        state=State(
            sm_mhz=(1980, 1410 if hot else 1980),
            power_watts=690.0 if hot else 410.0,
            temperature_celsius=71 if hot else 48,
            throttled=("power",) if hot else (),
        ),
    )


if __name__ == "__main__":
    made_up(rounds=12).write(RECORDED)
