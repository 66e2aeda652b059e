"""The kernels of the CUDA cores and of doubles in the emulator: layouts, edges, batches, clusters, parts of K, and
several orders of threads. Of integers, or close to float64. Those of the tensor cores are in test_hopper_layout.py and
test_planes_emulated.py. test_emulator_recorded.py has all of them to the last bit."""

import pytest
import torch
from emulated import H200, assert_exact, integers, placed, plan_named

from tilesmith.core.device import named
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.emulator import run
from tilesmith.kernels.fp64 import gemv, skinny
from tilesmith.kernels.mma.family import FP64
from tilesmith.kernels.mma.tiles import TILES_OF_DOUBLES, Cut, Tile
from tilesmith.planner import candidates

pytestmark = pytest.mark.usefixtures("emulator_cache")

SEEDS = [None, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.int8])
def test_simt_types(dtype: torch.dtype) -> None:
    a, b = integers(37, 45, dtype=dtype), integers(45, 61, dtype=dtype, seed=1)
    assert_exact(plan_named(a, b, "simt", "t4"), a, b)


@pytest.mark.parametrize("seed", SEEDS)
def test_simt_batches_and_layouts(seed: int | None) -> None:
    a, b = integers(2, 1, 40, 70, dtype=torch.float64), integers(3, 33, 70, dtype=torch.float64).mT
    assert_exact(plan_named(a, b, "simt"), a, b, seed)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int16])  # all steps of a tile are unrolled, and some
def test_simt_edges(dtype: torch.dtype) -> None:
    """Of rows, columns and K: less than a tile, a vector and a step, and a little more."""
    for m, k, n in ((1, 1, 1), (5, 17, 130), (130, 33, 5), (64, 64, 64), (66, 9, 2)):
        a, b = integers(m, k, dtype=dtype), integers(n, k, dtype=dtype, seed=1).T
        by_columns = a.T.contiguous().T
        layouts = [(a, b), (by_columns, b.contiguous()), (by_columns, b)]
        for x, y in layouts if dtype == torch.float64 else layouts[1:2]:
            assert_exact(plan_named(x, y, "simt", "t4"), x, y)


def test_simt_more_batch_dimensions_than_a_launch_walks() -> None:
    a = integers(*(2, 1) * 5, 3, 4, dtype=torch.float64)
    b = integers(*(1, 2) * 5, 4, 5, dtype=torch.float64, seed=1)
    plan = plan_named(a, b, "simt")
    assert (len(plan.problem.batch), len(plan.launches)) == (10, 4)
    assert_exact(plan, a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8, torch.int16])
@pytest.mark.parametrize("columns", [12, 14, 15])
def test_simt_stores_wider_results_as_vectors_of_all_widths(dtype: torch.dtype, columns: int) -> None:
    a, b = integers(9, 20).abs().to(dtype), integers(20, columns, seed=1).abs().to(dtype)
    wide = torch.float32 if dtype == torch.float16 else torch.int32
    for out_dtype in (dtype, wide):
        problem = Problem.of(a, b, out_dtype=out_dtype)
        *_, smallest = candidates(problem, named("t4"))
        out = run(smallest.plan(), a, b)
        assert out.dtype == out_dtype
        torch.testing.assert_close(out.long(), a.long() @ b.long(), rtol=0, atol=0)


def rounded_once(
    plan: Plan, a: torch.Tensor, b: torch.Tensor, seed: int | None = None, out: torch.Tensor | None = None
) -> None:
    """Sums of doubles, of which one float is left: of integers of ten bits, the nearest one."""
    out = run(plan, a, b, seed=seed, out=out)
    torch.testing.assert_close(out, (a.double() @ b.double()).float(), rtol=0, atol=0)


def of_ten_bits(rows: int, columns: int, layout: str = "n", seed: int = 0) -> torch.Tensor:
    """By rows or by columns; in capitals from an odd address on, with an odd stride."""
    rows, columns = (columns, rows) if layout in "tT" else (rows, columns)
    odd = int(layout.isupper())
    values = torch.randint(-1023, 1024, (rows, columns), generator=torch.Generator().manual_seed(seed)).float()
    own = placed(values, (-(-columns // 4) * 4 + odd, 1), odd)
    return own.T if layout in "tT" else own


@pytest.mark.parametrize(
    ("tile", "layouts"),
    [(tile, (("nn", "TT"), ("Nt", "tN"))[which % 2]) for which, tile in enumerate(TILES_OF_DOUBLES)],
    ids=str,
)
def test_fp64_mma_tiles_and_layouts(tile: Tile, layouts: tuple[str, str]) -> None:
    for layout in layouts:
        one = [((1, 1, 1), None)] if layout == "Nt" else []  # is in all of them, and is planned as in this one
        for (m, k, n), seed in [((70, 300, 75), None), ((33, 37, 66), 1), ((16, 130, 64), 2), *one]:
            a, b = of_ten_bits(m, k, layout[0]), of_ten_bits(k, n, layout[1], seed=1)
            rounded_once(FP64.plan(Problem.of(a, b), H200, Cut(tile)), a, b, seed)


@pytest.mark.parametrize("layout", ["nn", "Nt", "tN", "TT"])
def test_fp64_mma_parts(layout: str) -> None:
    """Of which the last is shorter; into lines along M as well, and for a batch."""
    tile = TILES_OF_DOUBLES[3]
    for (m, k, n), split_k in (((20, 700, 37), 3), ((17, 130, 16), 2)):
        a, b = of_ten_bits(m, k, layout[0]), of_ten_bits(k, n, layout[1], seed=1)
        for x, y in ((a, b), (a.expand(2, 3, m, k), b.expand(3, k, n))):
            plan = FP64.plan(Problem.of(x, y), H200, Cut(tile, split_k))
            rounded_once(plan, x, y, seed=1)
        by_columns = torch.empty(n, m).T
        plan = FP64.plan(Problem.of(a, b, out=by_columns), H200, Cut(tile, split_k))
        rounded_once(plan, a, b, out=by_columns)


def test_fp64_mma_batches() -> None:
    a = torch.stack([of_ten_bits(20, 33, seed=i) for i in range(6)]).reshape(3, 2, 20, 33)
    for b in (a.mT[:, :1], a.mT[0, 0], a.mT.contiguous()[0]):
        rounded_once(FP64.plan(Problem.of(a, b), H200, Cut(TILES_OF_DOUBLES[2])), a, b)


@pytest.mark.parametrize("layout", ["nn", "nt", "tN", "nT"])
def test_skinny(layout: str) -> None:
    """With and without clusters, and in parts of K."""
    seen = set()
    for (m, k, n), seed in (((7, 300, 200), 1), ((1, 17, 33), None), ((9, 1001, 70), 2), ((16, 40, 130), None)):
        a, b = of_ten_bits(m, k, layout[0]), of_ten_bits(k, n, layout[1], seed=1)
        plan = skinny.plan(Problem.of(a, b), H200)
        rounded_once(plan, a, b, seed)
        seen.add(plan.product.cluster > 1)
    assert seen == {False, True}


def test_skinny_parts() -> None:
    a, b = of_ten_bits(2, 20_000), of_ten_bits(20_000, 70, seed=1)
    plan = skinny.plan(Problem.of(a, b), H200)
    assert plan.split_k > 1
    rounded_once(plan, a, b)


@pytest.mark.parametrize("layout", ["n", "N"])
def test_gemv(layout: str) -> None:
    """Lines that are aligned or not, a vector of any stride, and parts of K."""
    seen = set()
    for lines, k, stride in ((1, 3, 1), (9, 1001, 2), (70, 3000, 1), (8, 64, 1), (3, 20_000, 1)):
        a, b = of_ten_bits(lines, k, layout), of_ten_bits(k, stride, seed=1)[:, :1]
        for x, y in ((a, b), (b.T, a.T)):
            plan = gemv.plan(Problem.of(x, y), H200)
            rounded_once(plan, x, y)
            seen.add(plan.split_k > 1)
    assert seen == {False, True}
