"""One small product of every kind, to be run under compute-sanitizer: test_sanitizer.py does.

    PYTHONPATH=src compute-sanitizer --tool memcheck python3 tests/gpu/sanitized_launches.py [kind ..]

With no argument, all of KINDS.
"""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import torch

from tilesmith.bench.distributions import operands
from tilesmith.bench.suites import random_tensor
from tilesmith.core import accuracy as accuracies
from tilesmith.core import device
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.packed import PackedPair
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.fp64 import gemv, skinny
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper import tf32
from tilesmith.kernels.mma import fp32 as fp32_mma
from tilesmith.kernels.mma import int8 as int8_mma
from tilesmith.kernels.mma.family import FLOAT64, FP64, HALF, TF32
from tilesmith.kernels.mma.tiles import LARGE_TILES_OF_HALVES, TILES_OF_FLOAT64, TILES_OF_PAIRS, TILES_OF_TERMS, Cut
from tilesmith.kernels.outer import outer
from tilesmith.kernels.simt import family as simt
from tilesmith.planner.choose import candidates
from tilesmith.runtime.executor import compiled, pack

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


def hopper_launches() -> Iterator[Launch]:
    """Every way of loading, multiplying and storing: layouts, clusters, odd strides, splits, batches."""
    large, small = hopper.Configuration(128, 256, cluster=2), hopper.Configuration(64, 32)
    cases: list[tuple[tuple[int, ...], tuple[int, ...], hopper.Configuration, torch.dtype | None]] = [
        ((520, 200), (200, 520), large, None),  # edges
        ((520, 200), (200, 520), large, torch.float32),
        ((521, 199), (199, 519), large, None),  # realigned, and stored by threads
        ((521, 199), (199, 519), large, torch.float32),
        ((128 * 150, 64), (64, 520), hopper.Configuration(128, 256), None),  # one step: B stays, whole rows are stored
        ((776, 200), (200, 520), hopper.Configuration(192, 176, cluster=2), None),  # three consumers
        ((777, 199), (199, 519), hopper.Configuration(192, 160), None),
        ((130, 600), (600, 72), hopper.Configuration(128, 96, cluster=2, split_k=3), None),
        ((16, 600), (600, 264), hopper.Configuration(64, 16, swap_ab=True), None),
        ((17, 600), (600, 263), hopper.Configuration(64, 32, split_k=2, swap_ab=True), None),
        ((1, 600), (600, 264), hopper.Configuration(64, 16, swap_ab=True), None),
        ((3, 1, 130, 64), (2, 64, 72), hopper.Configuration(128, 64), None),  # broadcast batches of one step
        ((3, 1, 131, 67), (2, 67, 71), small, None),
    ]
    for (a_shape, b_shape, c, out_dtype), transposed in itertools.product(cases, (False, True)):
        a, b = (random_tensor(shape, torch.bfloat16, "cuda") for shape in (a_shape, b_shape))
        if transposed:
            a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
        problem = Problem.of(a, b, out_dtype=out_dtype)
        if hopper.unsuited(problem, device.installed(0), c) is None:
            yield hopper.plan(problem, device.installed(0), c), a, b


def tf32_launches() -> Iterator[Launch]:
    """float32 as TF32: along K and across it, aligned or not, in short sums and in parts of K; and a batch."""
    shapes = [((130, 600), (600, 72)), ((521, 36), (36, 519)), ((3, 100), (100, 40)), ((3, 133, 67), (3, 67, 72))]
    for (a_shape, b_shape), x, y in itertools.product(shapes, (False, True), (False, True)):
        a, b = (random_tensor(shape, torch.float32, "cuda") for shape in (a_shape, b_shape))
        a, b = a.mT.contiguous().mT if x else a, b.mT.contiguous().mT if y else b
        for candidate in itertools.islice(tf32.candidates(Problem.of(a, b, accuracy="tf32"), device.installed(0)), 6):
            yield candidate.plan(), a, b


def fp32_launches() -> Iterator[Launch]:
    """float32 on the tensor cores, for ordinary values and for all others; and products of a few rows."""
    cases = [
        ("normal", (264, 200, 296), hopper.Configuration(128, 192, cluster=2)),
        ("graded slices of K", (264, 200, 296), hopper.Configuration(128, 192, cluster=2)),
        ("infinities and NaNs", (137, 195, 263), hopper.Configuration(128, 128)),
        ("normal", (137, 195, 263), hopper.Configuration(64, 96)),
        ("normal", (128 * 140, 64, 520), hopper.Configuration(128, 256)),  # one step, and B stays
        ("normal", (130, 1500, 72), hopper.Configuration(128, 96, cluster=2, split_k=3)),
        ("graded slices of K", (17, 9000, 263), hopper.Configuration(64, 32, split_k=2, swap_ab=True)),  # K chunks of K
        ("normal", (264, 520, 96), hopper.Configuration(128, 96, cluster=2, split_k=2, rs=True)),
        ("graded slices of K", (264, 520, 128), hopper.Configuration(64, 128, rs=True)),
        ("infinities and NaNs", (20, 520, 264), hopper.Configuration(128, 32, split_k=2, swap_ab=True, rs=True)),
    ]
    for (name, (m, k, n), c), transposed, accuracy in itertools.product(cases, (False, True), ("fp32", "tf32")):
        a, b = operands(name, m, k, n, "cuda")
        if transposed:
            a, b = a.T.contiguous().T, b.T.contiguous().T
        problem = Problem.of(a, b, accuracy=accuracies.resolve(accuracy))
        if hopper.unsuited(problem, device.installed(0), c) is None:
            yield hopper.plan(problem, device.installed(0), c), a, b
    rs = hopper.Configuration(128, 64, cluster=2, split_k=2, rs=True), hopper.Configuration(64, 96, rs=True)
    for name, c in itertools.product(("normal", "graded slices of K"), rs):
        pairs = [operands(name, 140, 600, 200, "cuda", seed) for seed in range(3)]
        a, b = torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs])
        yield hopper.plan(Problem.of(a, b), device.installed(0), c), a, b
    for m, k, n in ((1, 700, 300), (16, 700, 301), (5, 513, 128), (300, 700, 3)):
        for x, y in itertools.product((False, True), repeat=2):
            a, b = operands("normal", m, k, n, "cuda")
            a, b = a.T.contiguous().T if x else a, b.T.contiguous().T if y else b
            yield skinny.plan(Problem.of(a, b), device.installed(0)), a, b


def dot_launches() -> Iterator[Launch]:
    """A matrix by a vector: aligned or not, in parts, and with fewer lines than a block has."""
    for lines, k in ((300, 700), (301, 40_001), (3, 20_000)):
        a, b = operands("normal", lines, k, 1, "cuda")
        yield gemv.plan(Problem.of(a, b), device.installed(0)), a, b
        yield gemv.plan(Problem.of(b.T, a.T), device.installed(0)), b.T, a.T


def zeros_launches() -> Iterator[Launch]:
    """Products that skip zeros, of triangles."""
    for c, transposed in itertools.product(
        (hopper.Configuration(128, 128, cluster=2), hopper.Configuration(64, 64)), (0, 1)
    ):
        a, b = operands("uniform", 520, 700, 264, "cuda")
        a, b = (a.tril(), b.tril()) if transposed else (a.triu(), b.triu())
        if transposed:
            a, b = a.T.contiguous().T, b.T.contiguous().T
        yield hopper.plan(Problem.of(a, b, skips_zeros=True), device.installed(0), c), a, b


def mma_launches() -> Iterator[Launch]:
    """Every tile, with and without edges, along K and across it, aligned or not, in parts of K; and a batch."""
    shapes = [(64, 64, 128), (64, 512, 64), (67, 133, 65), (17, 1, 33)]
    for (m, k, n), x, y in itertools.product(shapes, (False, True), (False, True)):
        a, b = operands("normal", m, k, n, "cuda")
        a, b = a.T.contiguous().T if x else a, b.T.contiguous().T if y else b
        for family in (FP64, TF32):
            for candidate in family.candidates(Problem.of(a, b, accuracy="tf32"), device.installed(0)):
                yield candidate.plan(), a, b
    a, b = (random_tensor(shape, torch.float32, "cuda") for shape in ((3, 1, 33, 40), (2, 40, 36)))
    for candidate in FP64.candidates(Problem.of(a, b), device.installed(0)):
        yield candidate.plan(), a, b


def double_mma_launches() -> Iterator[Launch]:
    """float64: every tile, along K and across it, aligned or not, in parts of K; a batch."""
    gpu = device.installed(0)
    shapes = [((264, 200), (200, 296)), ((137, 195), (195, 263)), ((3, 1, 131, 67), (2, 67, 72))]
    for (a_shape, b_shape), x, y in itertools.product(shapes, (False, True), (False, True)):
        a, b = (random_tensor(shape, torch.float64, "cuda") for shape in (a_shape, b_shape))
        a, b = a.mT.contiguous().mT if x else a, b.mT.contiguous().mT if y else b
        for tile, split_k in itertools.product(TILES_OF_FLOAT64, (1, 2)):
            yield FLOAT64.plan(Problem.of(a, b), gpu, Cut(tile, split_k)), a, b


def half_mma_launches() -> Iterator[Launch]:
    """The same of 16 bits, whose lines are aligned to 16, 4 or 2 bytes."""
    shapes = [(64, 64, 128), (70, 514, 66), (67, 133, 65), (17, 1, 33)]
    for (m, k, n), x, y in itertools.product(shapes, (False, True), (False, True)):
        a, b = (random_tensor(shape, torch.bfloat16, "cuda") for shape in ((m, k), (k, n)))
        a, b = a.T.contiguous().T if x else a, b.T.contiguous().T if y else b
        for candidate in HALF.candidates(Problem.of(a, b), device.installed(0)):
            yield candidate.plan(), a, b


def large_mma_launches() -> Iterator[Launch]:
    """Large tiles of 16 bits, and float32 in terms, or as TF32 in one, for ordinary values and for all others; in parts
    of K; a batch."""
    gpu = device.installed(0)
    for (m, k, n), x, y in itertools.product([(264, 200, 296), (137, 195, 263)], (False, True), (False, True)):
        a, b = operands("normal", m, k, n, "cuda")
        a, b = a.T.contiguous().T if x else a, b.T.contiguous().T if y else b
        halves, special = (a.bfloat16(), b.bfloat16()), a.clone()
        special[0, 0] = float("inf")
        for split_k in (1, 2):
            for tile in LARGE_TILES_OF_HALVES:
                yield HALF.plan(Problem.of(*halves), gpu, Cut(tile, split_k)), *halves
            for tile, own in itertools.product(TILES_OF_TERMS, (a, special)):
                yield fp32_mma.plan(Problem.of(own, b), gpu, Cut(tile, split_k)), own, b
            for tile, own in itertools.product(LARGE_TILES_OF_HALVES, (a, special)):
                yield fp32_mma.plan(Problem.of(own, b, accuracy="tf32"), gpu, Cut(tile, split_k)), own, b
    a, b = (random_tensor(shape, torch.float32, "cuda") for shape in ((3, 1, 70, 130), (2, 130, 76)))
    yield fp32_mma.plan(Problem.of(a, b), gpu, Cut(TILES_OF_TERMS[0])), a, b
    yield HALF.plan(Problem.of(a.half(), b.half()), gpu, Cut(LARGE_TILES_OF_HALVES[0])), a.half(), b.half()


def turing_mma_launches() -> Iterator[Launch]:
    """What a T4 would run: copies through registers, of 16, 4 and 2 bytes, at edges too; in parts of K; a batch."""
    t4 = device.named("t4")
    shapes = [
        ((264, 200), (200, 296)),
        ((137, 195), (195, 263)),
        ((70, 514), (514, 66)),
        ((3, 1, 70, 130), (2, 130, 76)),
    ]
    for (a_shape, b_shape), x, y in itertools.product(shapes, (False, True), (False, True)):
        a, b = (random_tensor(shape, torch.float16, "cuda") for shape in (a_shape, b_shape))
        a, b = a.mT.contiguous().mT if x else a, b.mT.contiguous().mT if y else b
        for tile, split_k in itertools.product(HALF.tiles_on(t4), (1, 2)):
            yield replace(HALF.plan(Problem.of(a, b), t4, Cut(tile, split_k)), device=device.installed(0)), a, b


def int8_mma_launches() -> Iterator[Launch]:
    """Bytes: read as they lie, or turned before, by words or by bytes; in parts of K; a batch."""
    gpu = device.installed(0)
    shapes = [((264, 200), (200, 296)), ((137, 195), (195, 263)), ((3, 1, 131, 67), (2, 67, 72))]
    for (a_shape, b_shape), x, y in itertools.product(shapes, (False, True), (False, True)):
        a, b = (random_tensor(shape, torch.int8, "cuda") for shape in (a_shape, b_shape))
        a, b = a.mT.contiguous().mT if x else a, b.mT.contiguous().mT if y else b
        for out_dtype, tile in itertools.product((torch.int32, torch.int8), TILES_OF_PAIRS):
            problem = Problem.of(a, b, out_dtype=out_dtype)
            yield int8_mma.plan(problem, gpu, Cut(tile, 2 if out_dtype == torch.int32 else 1)), a, b


def outer_launches() -> Iterator[Launch]:
    """A short K: every layout; lines that are aligned and others; a batch."""
    gpu = device.installed(0)
    shapes = [((264, 8), (8, 296)), ((137, 31), (31, 263)), ((3, 1, 131, 5), (2, 5, 72))]
    for (a_shape, b_shape), x, y in itertools.product(shapes, (False, True), (False, True)):
        a, b = (random_tensor(shape, torch.float32, "cuda") for shape in (a_shape, b_shape))
        a, b = a.mT.contiguous().mT if x else a, b.mT.contiguous().mT if y else b
        yield outer.plan(Problem.of(a, b), gpu), a, b


def pack_launches() -> Iterator[Launch]:
    """Packing, and products with packed operands, for ordinary values and for all others."""
    shapes = [((264, 200), (200, 296)), ((137, 9000), (9000, 263)), ((3, 1, 131, 67), (2, 67, 71))]
    for (a_shape, b_shape), transposed, wide in itertools.product(shapes, (False, True), (False, True)):
        a, b = (random_tensor(shape, torch.float32, "cuda") for shape in (a_shape, b_shape))
        if transposed:
            a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
        if wide:
            a[..., 0, 0] = float("inf")
        terms = pack(a, "fp32", first=True), pack(b, "fp32", first=False)
        for sides in ((True, False), (False, True), (True, True)):
            problem = Problem.of(a, b, packed=sides)
            plan = hopper.plan(problem, device.installed(0), hopper.Configuration(128, 64))
            yield plan, a, b, (terms[0] if sides[0] else None, terms[1] if sides[1] else None)


def mixed_launches() -> Iterator[Launch]:
    """float32 with 16-bit floats, for ordinary values and for all others."""
    types = [(torch.float32, torch.bfloat16), (torch.float16, torch.float32)]
    sizes = [(264, 200, 296), (137, 195, 263), (128 * 140, 64, 520), (20, 9000, 263)]
    for dtypes, (m, k, n), transposed, wide in itertools.product(types, sizes, (False, True), (False, True)):
        a, b = random_tensor((m, k), dtypes[0], "cuda"), random_tensor((k, n), dtypes[1], "cuda")
        if transposed:
            a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
        if wide:
            a[0, 0] = float("inf")
        problem = Problem.of(a, b, may_mix=True)
        for c in (hopper.Configuration(128, 64, cluster=2), hopper.Configuration(64, 96)):
            if hopper.unsuited(problem, device.installed(0), c) is None:
                yield hopper.plan(problem, device.installed(0), c), a, b


def epilogue_launches() -> Iterator[Launch]:
    """Every family with what it can add, at the edges of tiles too."""
    shapes = [
        *(((2, 130), 200, 261), ((130,), 600, 264), ((520,), 64, 520)),
        *(((131,), 72, 262), ((3,), 300, 263), ((1,), 300, 264)),
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
            plans: dict[tuple[str, bool, bool], Candidate] = {}
            for candidate in candidates(problem, device.installed(0)):
                family, *words = candidate.name.split()
                plans.setdefault((family, "split_k" in words, "rs" in words), candidate)
            for candidate in plans.values():
                yield candidate.plan(), a, b, None, epilogue


KINDS: Final = {
    "simt": simt_launches,
    "hopper": hopper_launches,
    "tf32": tf32_launches,
    "fp32": fp32_launches,
    "zeros": zeros_launches,
    "gemv": dot_launches,
    "mma": mma_launches,
    "double_mma": double_mma_launches,
    "half_mma": half_mma_launches,
    "large_mma": large_mma_launches,
    "turing_mma": turing_mma_launches,
    "int8_mma": int8_mma_launches,
    "outer": outer_launches,
    "pack": pack_launches,
    "mixed": mixed_launches,
    "epilogue": epilogue_launches,
}


def main() -> None:
    launches = 0
    for kind in sys.argv[1:] or KINDS:
        for plan, a, b, *more in KINDS[kind]():
            compiled(plan, 0)(a, b, None, *more)
            launches += len(plan.launches)
    torch.cuda.synchronize()
    print(f"{launches} launches")


if __name__ == "__main__":
    main()
