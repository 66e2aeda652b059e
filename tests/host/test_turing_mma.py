"""float16 on Turing's tensor cores, whose copies pass through registers: in the emulator, of integers, whose sums are
exact; and the machine code."""

import itertools

import pytest
import torch
from emulated import placed
from launched import entries
from machine_code import instructions_without_spills, total

import tilesmith
from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.problem import Problem
from tilesmith.emulator import run
from tilesmith.kernels.mma import launch
from tilesmith.kernels.mma.family import FP64, HALF, TF32
from tilesmith.kernels.mma.tiles import LARGE_TILES_ON_TURING, TILES_ON_TURING, Cut, Tile
from tilesmith.planner import choose

pytestmark = pytest.mark.usefixtures("emulator_cache")

T4 = KNOWN_GPUS["t4"]
TILES = (*TILES_ON_TURING, *LARGE_TILES_ON_TURING)


def integers(shape: tuple[int, ...], layout: str, seed: int = 0) -> torch.Tensor:
    """By rows or by columns; in capitals with lines that start at odd addresses, or after a 2 at even ones."""
    by_columns, shift = layout[-1] in "tT", (int(layout[0]) if layout[0].isdigit() else int(layout.isupper()))
    rows, columns = shape[:-3:-1] if by_columns else shape[-2:]
    values = torch.randint(-4, 5, (*shape[:-2], rows, columns), generator=torch.Generator().manual_seed(seed)).half()
    strides = [-(-columns // 8) * 8 + shift, 1]
    for size in (rows, *shape[-3:0:-1]):
        strides.insert(0, strides[0] * size)
    own = placed(values, tuple(strides[-values.dim() :]), shift)
    return own.mT if by_columns else own


def meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# Those of A and B: of each pair the second has both in the other layout.
LAYOUTS = ["n n, T 2t", "2t 2n, n t", "N T, t n"]
LAYOUTS_OF_LARGE_TILES = ["n n, 2t T", "t 2n, N t"]
SIZES = [((150, 600, 75), None), ((136, 192, 264), 3), ((33, 37, 66), 1)]


@pytest.mark.parametrize(
    ("tile", "layouts"),
    [
        *zip(TILES_ON_TURING, LAYOUTS, strict=True),
        *zip(LARGE_TILES_ON_TURING, LAYOUTS_OF_LARGE_TILES, strict=True),
    ],
    ids=str,
)
def test_tiles_and_layouts(tile: Tile, layouts: str) -> None:
    """Copies of 16, 4 and 2 bytes, whole ones and those at edges; K whole and in parts."""
    for of_a, of_b in map(str.split, layouts.split(",")):
        one = [((1, 1, 1), None)] if of_a[-1] in "nN" and of_b[-1] in "tT" else []  # is both, and is planned so
        for (m, k, n), seed in SIZES + one:
            a, b = integers((m, k), of_a), integers((k, n), of_b, seed=1)
            for split_k in (1, 2) if k == 600 else (1,):
                plan, conflicts = HALF.plan(Problem.of(a, b), T4, Cut(tile, split_k)), dict[str, int]()
                out = run(plan, a, b, seed=seed, bank_conflicts=conflicts)
                torch.testing.assert_close(out, (a.double() @ b.double()).half(), rtol=0, atol=0)
                if tile.by_matrices or not (of_a.isupper() or of_b.isupper()):  # or else two bytes at a time
                    assert conflicts["mma_large" if tile.by_matrices else "mma"] == 0


@pytest.mark.parametrize("tile", [TILES_ON_TURING[0], TILES_ON_TURING[-1], LARGE_TILES_ON_TURING[1]], ids=str)
def test_batches_outputs_and_epilogues(tile: Tile) -> None:
    a, b = integers((3, 2, 20, 33), "n"), integers((2, 33, 20), "T", seed=1)
    exact = a.double() @ b.double()
    wide = torch.empty(3, 2, 20, 40, dtype=a.dtype)
    for out in (None, wide[..., 3:23], wide[..., ::2], wide[..., :20].mT):
        found = run(HALF.plan(Problem.of(a, b, out=out), T4, Cut(tile)), a, b, out=out)
        torch.testing.assert_close(found, exact.half(), rtol=0, atol=0)
    epilogue = Epilogue(bias=integers((1, 20), "n")[0], activation="relu", residual=exact.half())
    plan = HALF.plan(Problem.of(a, b, epilogue=epilogue), T4, Cut(tile))
    assert epilogue.bias is not None
    wanted = torch.relu(exact + epilogue.bias.double()) + exact.half().double()
    torch.testing.assert_close(run(plan, a, b, epilogue=epilogue), wanted.half(), rtol=0, atol=0)


def test_products_on_a_t4_are_right() -> None:
    with tilesmith.emulate("t4"):
        a, b = torch.randn(70, 1000).half(), torch.randn(1000, 51).half()
        truth = a.double() @ b.double()
        assert (tilesmith.matmul(a, b) - truth).norm() <= 3e-4 * truth.norm()


def test_what_is_chosen() -> None:
    square, odd = meta(4096, 4096), meta(4096, 4095)
    for problem, launches in (
        (Problem.of(square, square), ["mma_large"]),
        (Problem.of(square.T, square.T), ["mma_large"]),
        (Problem.of(odd.T, odd), ["realign", "mma_large"]),
        (Problem.of(square[:64, :64], square[:64, :64]), ["mma"]),
    ):
        plan = choose(problem, T4)
        assert (plan.family, entries(plan)) == ("half_mma", launches)
        assert not any(each.awaits_predecessor for each in plan.launches)
    for dtype in (torch.bfloat16, torch.float32, torch.int8):
        other = meta(4096, 4096, dtype=dtype)
        assert choose(Problem.of(other, other, accuracy="fp32"), T4).family == "simt"


def test_every_kernel_is_for_turing() -> None:
    """Its memory is that of a T4, for as many blocks as an SM shall have; GPUs after it have none of these."""
    for kernel in HALF.kernels(T4):
        assert kernel.shared_bytes <= T4.shared_bytes_per_block
        if isinstance(c := kernel.constants, launch.Constants):
            assert kernel.shared_bytes * c.blocks_per_sm <= T4.shared_bytes_per_sm
            assert kernel.threads * c.blocks_per_sm <= T4.threads_per_sm
            assert (c.Element, c.product_k, c.holds_copies) == ("tilesmith::float16", 8, True)
    for gpu in ("a100", "h200", "rtx4090"):
        found = [k.constants for k in HALF.kernels(KNOWN_GPUS[gpu]) if isinstance(k.constants, launch.Constants)]
        assert {(c.product_k, c.holds_copies) for c in found} == {(16, False)}


def test_what_it_cannot_do() -> None:
    why = "is for operands and outputs of float16 on compute capability 7.5"
    for a, out_dtype in ((meta(64, 64, dtype=torch.bfloat16), None), (meta(64, 64), torch.float32)):
        assert HALF.rejects(Problem.of(a, a, out_dtype=out_dtype), T4) == why
    single = Problem.of(meta(64, 64, dtype=torch.float32), meta(64, 64, dtype=torch.float32), accuracy="tf32")
    assert TF32.rejects(single, T4) == "is for compute capability 8.0 and later"
    assert FP64.rejects(single, T4) == "is for compute capability 9.0"
    assert HALF.rejects(Problem.of(meta(8, 0), meta(0, 8)), T4) == "there is nothing to multiply"


@pytest.mark.parametrize("layouts", itertools.product("nt", repeat=2), ids="".join)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_the_machine_code(tile: Tile, layouts: tuple[str, str]) -> None:
    a, b = (integers((128, 128), layout) for layout in layouts)
    bias = integers((1, 128), "n")[0]
    for epilogue in (None, Epilogue(bias=bias)):
        kernel = HALF.plan(Problem.of(a, b, epilogue=epilogue), T4, Cut(tile)).product.kernel
        found = instructions_without_spills(kernel, T4)
    products = tile.m * tile.n * tile.k // (tile.threads // 32) // (16 * 8 * 8)
    assert total(found, r"HMMA\.1688\.F32") == products * (2 if tile.by_matrices else 1)  # in the loop and after it
    assert (total(found, r"LDSM\.16\.MT?88\.4") > 0) == tile.by_matrices
    assert total(found, r"LDG\.E\.128.*") > 0 and total(found, r"STS\.128") > 0
    assert total(found, r"LDGSTS.*") == total(found, r"STL.*") == total(found, r"LDL.*") == 0


@pytest.mark.parametrize("widths", [(2, 2), (4, 4), (16, 2), (4, 16)], ids=str)
@pytest.mark.parametrize("tile", TILES_ON_TURING, ids=str)
def test_the_kernels_of_lines_that_are_not_aligned_do_not_spill(tile: Tile, widths: tuple[int, int]) -> None:
    shifts = {2: "N", 4: "2n", 16: "n"}
    a, b = (integers((128, 128), shifts[width]) for width in widths)
    kernel = HALF.plan(Problem.of(a, b), T4, Cut(tile)).product.kernel
    assert isinstance(c := kernel.constants, launch.Constants)
    assert (c.a_copy_bytes, c.b_copy_bytes) == widths
    assert total(instructions_without_spills(kernel, T4), r"HMMA\.1688\.F32") > 0


def test_it_explains_itself() -> None:
    text = " ".join(str(tilesmith.explain(meta(2048, 2048), meta(2048, 2048), gpu="t4")).split())
    assert "multiplies 16-bit values on the tensor cores" in text
    assert "half_mma 128x" in text
