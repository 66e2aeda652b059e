"""One small product of every kind, to be run under compute-sanitizer.

    PYTHONPATH=src compute-sanitizer --tool memcheck python3 scripts/sanitize.py [family ..]

With no argument, all of FAMILIES.
"""

import itertools
import sys
from collections.abc import Iterator

import torch

from tilesmith import accuracy as accuracies
from tilesmith import device
from tilesmith.bench.distributions import operands
from tilesmith.bench.suites import random_tensor
from tilesmith.epilogue import Epilogue
from tilesmith.kernels import dot, exact, simt, sm90, thin
from tilesmith.kernels.family import Candidate
from tilesmith.plan import Plan
from tilesmith.planner.choose import candidates
from tilesmith.prepared import PackedPair, pack, prepare
from tilesmith.problem import Problem

Launch = (
    tuple[Plan, torch.Tensor, torch.Tensor]
    | tuple[Plan, torch.Tensor, torch.Tensor, PackedPair]
    | tuple[Plan, torch.Tensor, torch.Tensor, None, Epilogue]
)


def simt_launches() -> Iterator[Launch]:
    """Every type, tile and layout."""
    shapes = [(130, 40, 261), (128, 32, 256)]  # with and without edges
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.int8)
    for dtype, (m, k, n), transposed in itertools.product(dtypes, shapes, (False, True)):
        sizes = ((2, k, m), (n, k)) if transposed else ((2, m, k), (k, n))
        a, b = (random_tensor(size, dtype, "cuda") for size in sizes)
        if transposed:
            a, b = a.mT, b.mT
        for candidate in simt.candidates(Problem.of(a, b), device.installed(0)):
            yield candidate.plan(), a, b


def sm90_launches() -> Iterator[Launch]:
    """Every way of loading, multiplying and storing: layouts, clusters, odd strides, splits, batches."""
    large, small = sm90.Configuration(128, 256, cluster=2), sm90.Configuration(64, 32)
    cases: list[tuple[tuple[int, ...], tuple[int, ...], sm90.Configuration, torch.dtype | None]] = [
        ((520, 200), (200, 520), large, None),  # edges
        ((520, 200), (200, 520), large, torch.float32),
        ((521, 199), (199, 519), large, None),  # realigned, and stored by threads
        ((521, 199), (199, 519), large, torch.float32),
        ((128 * 150, 64), (64, 520), sm90.Configuration(128, 256), None),  # one step: B stays, whole rows are stored
        ((776, 200), (200, 520), sm90.Configuration(192, 176, cluster=2), None),  # three consumers
        ((777, 199), (199, 519), sm90.Configuration(192, 160), None),
        ((130, 600), (600, 72), sm90.Configuration(128, 96, cluster=2, splits=3), None),
        ((16, 600), (600, 264), sm90.Configuration(64, 16, swap=True), None),
        ((17, 600), (600, 263), sm90.Configuration(64, 32, splits=2, swap=True), None),
        ((1, 600), (600, 264), sm90.Configuration(64, 16, swap=True), None),
        ((3, 1, 130, 64), (2, 64, 72), sm90.Configuration(128, 64), None),  # broadcast batches of one step
        ((3, 1, 131, 67), (2, 67, 71), small, None),
    ]
    for (a_shape, b_shape, c, out_dtype), transposed in itertools.product(cases, (False, True)):
        a, b = (random_tensor(shape, torch.bfloat16, "cuda") for shape in (a_shape, b_shape))
        if transposed:
            a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
        problem = Problem.of(a, b, out_dtype=out_dtype)
        if sm90.unsuited(problem, device.installed(0), c) is None:
            yield sm90.plan(problem, device.installed(0), c), a, b


def fp32_launches() -> Iterator[Launch]:
    """float32 on the tensor cores, for ordinary values and for all others; and products of a few rows."""
    cases = [
        ("normal", (264, 200, 296), sm90.Configuration(128, 192, cluster=2)),
        ("graded slices of K", (264, 200, 296), sm90.Configuration(128, 192, cluster=2)),
        ("infinities and NaNs", (137, 195, 263), sm90.Configuration(128, 128)),
        ("normal", (137, 195, 263), sm90.Configuration(64, 96)),
        ("normal", (128 * 140, 64, 520), sm90.Configuration(128, 256)),  # one step, and B stays
        ("normal", (130, 1500, 72), sm90.Configuration(128, 96, cluster=2, splits=3)),
        ("graded slices of K", (17, 9000, 263), sm90.Configuration(64, 32, splits=2, swap=True)),  # slabs of K
        ("normal", (264, 520, 96), sm90.Configuration(128, 96, cluster=2, splits=2, raw=True)),
        ("graded slices of K", (264, 520, 128), sm90.Configuration(64, 128, raw=True)),
        ("infinities and NaNs", (20, 520, 264), sm90.Configuration(128, 32, splits=2, swap=True, raw=True)),
    ]
    for (name, (m, k, n), c), transposed, accuracy in itertools.product(cases, (False, True), ("fp32", "tf32")):
        a, b = operands(name, m, k, n, "cuda")
        if transposed:
            a, b = a.T.contiguous().T, b.T.contiguous().T
        problem = Problem.of(a, b, accuracy=accuracies.resolve(accuracy))
        if sm90.unsuited(problem, device.installed(0), c) is None:
            yield sm90.plan(problem, device.installed(0), c), a, b
    raw = sm90.Configuration(128, 64, cluster=2, splits=2, raw=True), sm90.Configuration(64, 96, raw=True)
    for name, c in itertools.product(("normal", "graded slices of K"), raw):
        pairs = [operands(name, 140, 600, 200, "cuda", seed) for seed in range(3)]
        a, b = torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs])
        yield sm90.plan(Problem.of(a, b), device.installed(0), c), a, b
    for m, k, n in ((1, 700, 300), (16, 700, 301), (5, 513, 128), (300, 700, 3)):
        for x, y in itertools.product((False, True), repeat=2):
            a, b = operands("normal", m, k, n, "cuda")
            a, b = a.T.contiguous().T if x else a, b.T.contiguous().T if y else b
            yield thin.plan(Problem.of(a, b), device.installed(0)), a, b


def dot_launches() -> Iterator[Launch]:
    """A matrix by a vector: aligned or not, in parts, and with fewer lines than a block has."""
    for lines, k in ((300, 700), (301, 40_001), (3, 20_000)):
        a, b = operands("normal", lines, k, 1, "cuda")
        yield dot.plan(Problem.of(a, b), device.installed(0)), a, b
        yield dot.plan(Problem.of(b.T, a.T), device.installed(0)), b.T, a.T


def zeros_launches() -> Iterator[Launch]:
    """Products that skip zeros, of triangles."""
    for c, transposed in itertools.product(
        (sm90.Configuration(128, 128, cluster=2), sm90.Configuration(64, 96)), (0, 1)
    ):
        a, b = operands("uniform", 520, 700, 264, "cuda")
        a, b = (a.tril(), b.tril()) if transposed else (a.triu(), b.triu())
        if transposed:
            a, b = a.T.contiguous().T, b.T.contiguous().T
        yield sm90.plan(Problem.of(a, b, skips_zeros=True), device.installed(0), c), a, b


def exact_launches() -> Iterator[Launch]:
    """Every tile, with and without edges, along K and across it, aligned or not; and a batch."""
    shapes = [(64, 64, 128), (64, 512, 64), (67, 133, 65), (17, 1, 33)]
    for (m, k, n), x, y in itertools.product(shapes, (False, True), (False, True)):
        a, b = operands("normal", m, k, n, "cuda")
        a, b = a.T.contiguous().T if x else a, b.T.contiguous().T if y else b
        for candidate in exact.candidates(Problem.of(a, b), device.installed(0)):
            yield candidate.plan(), a, b
    a, b = (random_tensor(shape, torch.float32, "cuda") for shape in ((3, 1, 33, 40), (2, 40, 36)))
    for candidate in exact.candidates(Problem.of(a, b), device.installed(0)):
        yield candidate.plan(), a, b


def pack_launches() -> Iterator[Launch]:
    """Packing, and products with packed operands, for ordinary values and for all others."""
    shapes = [((264, 200), (200, 296)), ((137, 9000), (9000, 263)), ((3, 1, 131, 67), (2, 67, 71))]
    for (a_shape, b_shape), transposed, wide in itertools.product(shapes, (False, True), (False, True)):
        a, b = (random_tensor(shape, torch.float32, "cuda") for shape in (a_shape, b_shape))
        if transposed:
            a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
        if wide:
            a[..., 0, 0] = float("inf")
        planes = pack(a, "fp32", first=True), pack(b, "fp32", first=False)
        for sides in ((True, False), (False, True), (True, True)):
            problem = Problem.of(a, b, packed=sides)
            plan = sm90.plan(problem, device.installed(0), sm90.Configuration(128, 64))
            yield plan, a, b, (planes[0] if sides[0] else None, planes[1] if sides[1] else None)


def mixed_launches() -> Iterator[Launch]:
    """float32 with 16-bit floats, for ordinary values and for all others."""
    types = [(torch.float32, torch.bfloat16), (torch.float16, torch.float32)]
    cases = [
        ((264, 200), (200, 296)),
        ((137, 195), (195, 263)),
        ((128 * 140, 64), (64, 520)),
        ((20, 9000), (9000, 263)),
    ]
    for dtypes, shapes, transposed, wide in itertools.product(types, cases, (False, True), (False, True)):
        a, b = (random_tensor(shape, dtype, "cuda") for shape, dtype in zip(shapes, dtypes, strict=True))
        if transposed:
            a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
        if wide:
            a[0, 0] = float("inf")
        problem = Problem.of(a, b, may_mix=True)
        for c in (sm90.Configuration(128, 64, cluster=2), sm90.Configuration(64, 96)):
            if sm90.unsuited(problem, device.installed(0), c) is None:
                yield sm90.plan(problem, device.installed(0), c), a, b


def epilogue_launches() -> Iterator[Launch]:
    """Every family with what it can add, at the edges of tiles too."""
    shapes = [
        ((2, 130), 200, 261),
        ((130,), 600, 264),
        ((520,), 64, 520),
        ((131,), 72, 262),
        ((3,), 300, 263),
        ((1,), 300, 264),
    ]
    for (rows, k, n), dtype in itertools.product(shapes, (torch.float32, torch.bfloat16)):
        a, b = random_tensor((*rows, k), dtype, "cuda"), random_tensor((n, k), dtype, "cuda").mT
        bias, row = random_tensor((n,), dtype, "cuda"), random_tensor((n,), dtype, "cuda")
        residual = random_tensor((*rows, n), dtype, "cuda")
        epilogues = [
            Epilogue(bias),
            Epilogue(bias, "gelu", residual),
            Epilogue(None, None, residual, 0.5, 2.0),
            Epilogue(None, "silu", row),
            Epilogue(bias, None, residual.mT.contiguous().mT),
        ]
        for epilogue, accuracy in itertools.product(
            epilogues, ("fp32", "ieee") if dtype == torch.float32 else ("fp32",)
        ):
            problem = Problem.of(a, b, accuracy=accuracies.resolve(accuracy), epilogue=epilogue)
            plans: dict[str, Candidate] = {}
            for candidate in candidates(problem, device.installed(0)):
                kind = (
                    candidate.name.split()[0]
                    + " split" * ("split" in candidate.name)
                    + " raw" * candidate.name.endswith("raw")
                )
                plans.setdefault(kind, candidate)
            for candidate in plans.values():
                yield candidate.plan(), a, b, None, epilogue


FAMILIES = {
    "simt": simt_launches,
    "sm90": sm90_launches,
    "fp32": fp32_launches,
    "zeros": zeros_launches,
    "dot": dot_launches,
    "exact": exact_launches,
    "pack": pack_launches,
    "mixed": mixed_launches,
    "epilogue": epilogue_launches,
}


def main() -> None:
    launches = 0
    for family in sys.argv[1:] or FAMILIES:
        for plan, a, b, *more in FAMILIES[family]():
            prepare(plan, 0)(a, b, None, *more)
            launches += len(plan.stages)
    torch.cuda.synchronize()
    print(f"{launches} launches")


if __name__ == "__main__":
    main()
