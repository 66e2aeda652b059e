"""16-bit products in a warp's registers: in the emulator, of integers, whose sums are exact; and their machine code."""

import itertools

import pytest
import torch
from emulated import H200, placed
from launched import entries
from machine_code import assert_nothing_spills, instructions_of_each, total

import tilesmith
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.problem import Problem
from tilesmith.emulator import run
from tilesmith.explain.promises import Promises
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.mma.family import HALF
from tilesmith.kernels.mma.tiles import LARGE_TILES_OF_HALVES, TILES_OF_HALVES, Cut, Tile
from tilesmith.planner import choose
from tilesmith.runtime import compiler, source

pytestmark = pytest.mark.usefixtures("emulator_cache")


def small_integers(rows: int, columns: int, layout: str, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """By rows or by columns; in capitals with lines that start at odd addresses, or after a 2 at even ones."""
    by_columns, shift = layout[-1] in "tT", (int(layout[0]) if layout[0].isdigit() else int(layout.isupper()))
    rows, columns = (columns, rows) if by_columns else (rows, columns)
    values = torch.randint(-4, 5, (rows, columns), generator=torch.Generator().manual_seed(seed)).to(dtype)
    own = placed(values, (-(-columns // 8) * 8 + shift, 1), shift)
    return own.T if by_columns else own


# Those of A and B: of each pair the second has both in the other layout, and tiles of a kind have copies of all widths.
LAYOUTS = ["n n, t T", "t N, 2n 2t", "N t, 2t n", "T 2n, n t", "n n, 2t T", "N 2t, t 2n"]
LAYOUTS_OF_LARGE_TILES = ["n n, 2t 2t", "N t, T n"]
SIZES = [((70, 600, 75), None), ((33, 37, 66), 1), ((16, 130, 64), 2)]


@pytest.mark.parametrize(
    ("tile", "layouts"),
    [
        *zip(TILES_OF_HALVES, LAYOUTS, strict=True),
        *zip(LARGE_TILES_OF_HALVES, LAYOUTS_OF_LARGE_TILES, strict=True),
    ],
    ids=str,
)
def test_tiles_and_layouts(tile: Tile, layouts: str) -> None:
    """Copies of 16, 4 and 2 bytes, and results in lines of any address; with K whole and in parts."""
    for dtype, (of_a, of_b) in zip((torch.bfloat16, torch.float16), map(str.split, layouts.split(",")), strict=True):
        one = [((1, 1, 1), None)] if of_a[-1] in "nN" and of_b[-1] in "tT" else []  # is both, and is planned so
        for (m, k, n), seed in SIZES + one:
            a, b = small_integers(m, k, of_a, dtype), small_integers(k, n, of_b, dtype, seed=1)
            for split_k in (1, 2) if k == 600 else (1,):
                out = run(HALF.plan(Problem.of(a, b), H200, Cut(tile, split_k)), a, b, seed=seed)
                torch.testing.assert_close(out, (a.double() @ b.double()).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("tile", [TILES_OF_HALVES[0], LARGE_TILES_OF_HALVES[1]], ids=str)
def test_batches_outputs_and_epilogues(tile: Tile) -> None:
    a = torch.stack([small_integers(20, 33, "n", torch.bfloat16, seed=i) for i in range(6)]).reshape(3, 2, 20, 33)
    b = a.mT.contiguous()[0]
    exact = a.double() @ b.double()
    wanted = exact.bfloat16()
    wide = torch.empty(3, 2, 20, 40, dtype=a.dtype)
    for out in (None, wide[..., 3:23], wide[..., ::2]):
        found = run(HALF.plan(Problem.of(a, b, out=out), H200, Cut(tile)), a, b, out=out)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    bias = small_integers(1, 20, "n", a.dtype)[0]
    epilogue = Epilogue(bias=bias, activation="relu", residual=wanted)
    plan = HALF.plan(Problem.of(a, b, epilogue=epilogue), H200, Cut(tile))
    found = run(plan, a, b, epilogue=epilogue)
    with_epilogue = torch.relu(exact + bias.double()) + wanted.double()
    torch.testing.assert_close(found, with_epilogue.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("layouts", [("n", "n"), ("N", "T"), ("2n", "2t"), ("T", "N"), ("2t", "n")], ids="".join)
@pytest.mark.parametrize("tile", TILES_OF_HALVES, ids=str)
def test_the_kernels_do_not_spill(tile: Tile, layouts: tuple[str, str]) -> None:
    a, b = (small_integers(128, 128, layout, torch.bfloat16) for layout in layouts)
    launch = HALF.plan(Problem.of(a, b), H200, Cut(tile)).product
    assert_nothing_spills(launch)
    (found,) = instructions_of_each([launch.kernel])
    of_a_step = tile.m * tile.n * tile.k // (tile.threads // 32) // (16 * 8 * 16)
    assert total(found, r"HMMA\.16816\.F32\.BF16") == of_a_step


def test_what_it_cannot_do_is_left_to_others() -> None:
    halves = [torch.empty(64, 64, dtype=dtype, device="meta") for dtype in (torch.float16, torch.bfloat16)]
    for problem in (
        Problem.of(halves[0].float(), halves[0].float()),
        Problem.of(halves[0], halves[0], out_dtype=torch.float32),
        Problem.of(halves[0].double(), halves[0].double()),
    ):
        assert "is for operands and outputs of float16 or bfloat16" in str(HALF.rejects(problem, H200))
    bfloat16s = Problem.of(halves[1], halves[1])
    why = "is for operands and outputs of float16 on compute capability 7.5"
    assert HALF.rejects(bfloat16s, KNOWN_GPUS["t4"]) == why
    assert HALF.rejects(bfloat16s, H200) is HALF.rejects(bfloat16s, KNOWN_GPUS["a100"]) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("gpu", ["a100", "rtx3090", "rtx4090", "b200", "rtx5090"])
def test_gpus_from_ampere_on_multiply_by_tensor_cores(gpu: str, dtype: torch.dtype) -> None:
    """No product needs more shared memory than a block may have. Before Hopper no kernel waits for another."""
    families, device = ("half_mma",) if dtype.itemsize == 2 else ("tf32_mma", "fp32_mma"), KNOWN_GPUS[gpu]
    accuracy: Accuracy = "fp32" if dtype.itemsize == 2 else "tf32"
    for (m, k, n), turned in itertools.product([(4096, 4096, 4096), (17, 5000, 33), (513, 64, 1001)], (False, True)):
        a = torch.empty(m, k, dtype=dtype, device="meta")
        b = torch.empty(n, k, dtype=dtype, device="meta").T if turned else torch.empty(k, n, dtype=dtype, device="meta")
        plan = choose(Problem.of(a, b, accuracy=accuracy), device)
        assert plan.family == families[m == 4096 and len(families) > 1]
        assert all(launch.kernel.shared_bytes <= device.shared_bytes_per_block for launch in plan.launches)
        assert any(launch.awaits_predecessor for launch in plan.launches) == (device.capability > (9, 0))


@pytest.mark.parametrize("gpu", ["a100", "rtx4090"])
def test_products_on_ampere_are_right(gpu: str) -> None:
    """TF32 is rounded by another instruction there."""
    with tilesmith.emulate(gpu):
        for dtype, accuracy, limit in ((torch.float16, None, 3e-4), (torch.float32, "tf32", 4e-4)):
            a, b = torch.randn(70, 1000).to(dtype), torch.randn(1000, 51).to(dtype)
            truth = a.double() @ b.double()
            found = tilesmith.matmul(a, b, accuracy=accuracy)
            assert (found - truth).norm() <= limit * truth.norm()


def test_many_tiles_are_walked_in_bands() -> None:
    """More rows of tiles than a band has, and two bands; each tile is computed once."""
    tile = LARGE_TILES_OF_HALVES[1]
    rows = tile.m * (tile.raster_rows + 2)
    a, b = small_integers(rows, 8, "n", torch.float16), small_integers(8, 300, "n", torch.float16)
    out = run(HALF.plan(Problem.of(a, b), H200, Cut(tile)), a, b)
    torch.testing.assert_close(out, (a.double() @ b.double()).half(), rtol=0, atol=0)


@pytest.mark.parametrize("gpu", ["a100", "rtx3090", "rtx4090", "b200", "rtx5090"])
def test_large_products_have_large_tiles_where_there_is_no_wgmma(gpu: str) -> None:
    a = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    odd = torch.empty(4096, 4095, dtype=torch.bfloat16, device="meta")
    for problem, launches in ((Problem.of(a, a), ["mma_large"]), (Problem.of(odd.T, odd), ["realign", "mma_large"])):
        assert entries(choose(problem, KNOWN_GPUS[gpu])) == launches
    assert entries(choose(Problem.of(a[:64, :64], a[:64, :64]), KNOWN_GPUS[gpu])) == ["mma"]


@pytest.mark.parametrize("arch", ["a100", "rtx4090", "rtx5090"])
def test_kernels_of_other_architectures_do_not_spill(arch: str) -> None:
    device = KNOWN_GPUS[arch]
    for dtype, size in ((torch.bfloat16, 512), (torch.float32, 512), (torch.bfloat16, 8192)):
        for layout in ("nn", "tt") if size == 8192 else ("nt",):
            a, b = (torch.empty(size, size, dtype=dtype, device="meta") for _ in "ab")
            a, b = a.T if layout[0] == "t" else a, b.T if layout[1] == "t" else b
            kernel = choose(Problem.of(a, b, accuracy="tf32"), device).product.kernel
            used = compiler.resources(source.render(kernel), device.arch)
            assert used.spill_store_bytes == used.spill_load_bytes == used.stack_bytes == 0


LOADS = {("n", "t"): ["M"], ("n", "n"): ["M", "MT"], ("t", "t"): ["M", "MT"], ("t", "n"): ["MT"]}


@pytest.mark.parametrize("layouts", LOADS, ids="".join)
@pytest.mark.parametrize("tile", LARGE_TILES_OF_HALVES, ids=str)
def test_the_machine_code_of_large_tiles(tile: Tile, layouts: tuple[str, str]) -> None:
    """A warp multiplies 64 x 64, in the loop and after it; what runs across K is turned as it is loaded."""
    a, b = (small_integers(128, 128, layout, torch.bfloat16) for layout in layouts)
    launch = HALF.plan(Problem.of(a, b), H200, Cut(tile)).product
    assert_nothing_spills(launch)
    (found,) = instructions_of_each([launch.kernel])
    assert total(found, r"HMMA\.16816\.F32\.BF16") == 2 * (tile.k // 16) * (64 // 16) * (64 // 8)
    assert [kind for kind in ("M", "MT") if total(found, rf"LDSM\.16\.{kind}88\.4")] == LOADS[layouts]
    assert total(found, r"LDGSTS\..*") > 0


def test_rows_are_independent_where_no_sums_of_parts_of_k_are_added() -> None:
    a = torch.empty(64, 512, dtype=torch.bfloat16, device="meta")
    problem = Problem.of(a, a.T)
    whole, by_warps = (
        next(tile for tile in TILES_OF_HALVES if (tile.warps_k > 1) == divided) for divided in (False, True)
    )
    assert Promises.of(HALF.plan(problem, H200, Cut(whole))).independent_of_other_rows
    assert Promises.of(hopper.plan(problem, H200, hopper.Configuration(64, 64))).independent_of_other_rows
    divided = Promises.of(HALF.plan(problem, H200, Cut(by_warps)))
    assert not divided.independent_of_other_rows
    assert "2 sets of warps divide K" in divided.sums
