"""float64 on the tensor cores: in the emulator, of integers, whose sums are exact; its choice; and its machine code."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from emulated import H200, assert_nothing_else_written, empty, normal, placed
from launched import constants_of, entries
from machine_code import assert_nothing_spills, instructions_of_each, total

import tilesmith
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.epilogue import ACTIVATIONS, Epilogue
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.emulator import run
from tilesmith.explain.promises import Promises
from tilesmith.kernels.mma import launch
from tilesmith.kernels.mma.family import FLOAT64
from tilesmith.kernels.mma.tiles import TILES_OF_FLOAT64, Cut, Tile
from tilesmith.planner import choose
from tilesmith.runtime import compiler, source

pytestmark = pytest.mark.usefixtures("emulator_cache")

A100 = KNOWN_GPUS["a100"]
FAST = ("a100", "a30", "h100", "h200", "gh200", "b200")
SMALL = TILES_OF_FLOAT64[-3]


def integers(rows: int, columns: int, layout: str = "n", seed: int = 0) -> torch.Tensor:
    """Of 21 bits, by rows or by columns; in capitals from an odd multiple of 8 bytes on, with an odd stride."""
    by_columns, odd = layout in "tT", int(layout.isupper())
    rows, columns = (columns, rows) if by_columns else (rows, columns)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-(2**20), 2**20 + 1, (rows, columns), generator=generator).double()
    own = placed(values, (-(-columns // 2) * 2 + odd, 1), odd)
    return own.T if by_columns else own


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Sums of less than 53 bits."""
    return (a.long() @ b.long()).double()


def planned(a: torch.Tensor, b: torch.Tensor, tile: Tile, split_k: int = 1, out: torch.Tensor | None = None) -> Plan:
    problem = Problem.of(a, b, out=out)
    assert FLOAT64.rejects(problem, H200) is None
    return FLOAT64.plan(problem, H200, Cut(tile, split_k))


def assert_exact(plan: Plan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> None:
    torch.testing.assert_close(run(plan, a, b, seed=1, out=out), exact(a, b), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("tile", "layouts"),
    [(tile, (("nn", "TT"), ("Nt", "tN"))[which % 2]) for which, tile in enumerate(TILES_OF_FLOAT64)],
    ids=str,
)
def test_tiles_and_layouts(tile: Tile, layouts: tuple[str, str]) -> None:
    """Copies of 16 and of 8 bytes, the last of which may be half of one; with K whole and in parts."""
    for layout in layouts:
        one = [((1, 1, 1), 1)] if layout == "Nt" else []  # is in all of them, and is planned as in this one
        for (m, k, n), split_k in [((70, 300, 136), 1), ((33, 37, 67), 1), ((17, 330, 64), 2), *one]:
            a, b = integers(m, k, layout[0]), integers(k, n, layout[1], seed=1)
            assert_exact(planned(a, b, tile, split_k), a, b)


def test_batches_and_outputs() -> None:
    """Some of them share a matrix; results by columns, in lines that are apart, and of parts of K."""
    a = torch.stack([integers(20, 133, seed=i) for i in range(6)]).reshape(3, 2, 20, 133)
    for b, split_k in itertools.product((a.mT[:, :1], a.mT[0, 0], a.mT.contiguous()[0]), (1, 2)):
        assert_exact(planned(a, b, SMALL, split_k), a, b)
    wide = torch.empty(3, 2, 20, 45, dtype=torch.float64)
    for out, split_k in itertools.product((wide[..., 3:23], wide[..., ::2][..., :20], wide[..., :20].mT), (1, 2)):
        b = a.mT[0, 0]
        assert_exact(planned(a, b, SMALL, split_k, out), a, b, out)


@pytest.mark.parametrize("tile", (TILES_OF_FLOAT64[0], SMALL), ids=str)
def test_nothing_but_the_result_is_written(tile: Tile) -> None:
    a, b = integers(40, 70, "N"), integers(70, 30, "T", seed=1)
    for strides in ((37, 1), (30, 1), (1, 41)):
        out = empty((40, 30), strides, torch.float64)
        assert_exact(planned(a, b, tile, out=out), a, b, out)
        assert_nothing_else_written(out)


def test_tiles_are_walked_in_bands() -> None:
    """More rows of tiles than a band has; each tile is computed once."""
    tile = TILES_OF_FLOAT64[0]
    a, b = integers(tile.m * (tile.raster_rows + 1), 8), integers(8, 300, seed=1)
    assert_exact(planned(a, b, tile), a, b)


@pytest.mark.parametrize("split_k", [1, 2])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_epilogues_are_computed_in_doubles(activation: str | None, split_k: int) -> None:
    a, b = normal(40, 100).double() / 7, normal(100, 36, seed=1).double() / 3
    bias, residual = normal(36, seed=2).double() / 3, normal(40, 36, seed=3).double() / 7
    epilogue = Epilogue(bias=bias, activation=activation, residual=residual, residual_scale=0.5)
    functions: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
        None: lambda x: x,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }
    plan = FLOAT64.plan(Problem.of(a, b, epilogue=epilogue), H200, Cut(SMALL, split_k))
    found = run(plan, a, b, epilogue=epilogue)
    torch.testing.assert_close(found, functions[activation](a @ b + bias) + 0.5 * residual, rtol=1e-13, atol=1e-13)


def test_infinities_and_nans_are_where_they_belong() -> None:
    """Also in the last k, beyond which operands are taken for zeros."""
    a, b = integers(20, 41, "N"), integers(41, 23, seed=1)
    a[0, 1], a[3, 40], a[19, 0], b[40, 0], b[0, 5], b[2, 22] = math.inf, math.nan, -math.inf, math.inf, 0.0, math.nan
    found = run(planned(a, b, SMALL), a, b)
    torch.testing.assert_close(found, a @ b, rtol=0, atol=0, equal_nan=True)


def meta(rows: int, columns: int, layout: str = "n") -> torch.Tensor:
    shape = (columns, rows) if layout == "t" else (rows, columns)
    own = torch.empty(shape, dtype=torch.float64, device="meta")
    return own.T if layout == "t" else own


@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_gpus_with_fast_doubles_multiply_them_by_tensor_cores(gpu: str) -> None:
    """Where no product needs more shared memory than a block may have."""
    device = KNOWN_GPUS[gpu]
    for (m, k, n), layouts in itertools.product([(4096, 4096, 4096), (17, 5000, 33), (512, 512, 512)], ("nn", "tt")):
        plan = choose(Problem.of(meta(m, k, layouts[0]), meta(k, n, layouts[1])), device)
        assert plan.family == ("double_mma" if gpu in FAST else "simt")
        assert all(each.kernel.shared_bytes <= device.shared_bytes_per_block for each in plan.launches)
        assert any(each.awaits_predecessor for each in plan.launches) <= (device.capability >= (9, 0))


def test_accuracies_are_those_of_float32() -> None:
    accuracies: tuple[Accuracy, ...] = ("fp32", "tf32", "ieee")
    names = {choose(Problem.of(meta(999, 999), meta(999, 999), accuracy=each), H200).name for each in accuracies}
    assert len(names) == 1 and names.pop().startswith("double_mma")


def test_what_it_cannot_do_is_left_to_others() -> None:
    a = meta(64, 64)
    for problem in (Problem.of(a.float(), a.float()), Problem.of(a.half(), a.half())):
        assert FLOAT64.rejects(problem, H200) == "is for operands and outputs of float64"
    for gpu in set(KNOWN_GPUS) - set(FAST):
        assert FLOAT64.rejects(Problem.of(a, a), KNOWN_GPUS[gpu]) == "is for compute capability 8.0, 9.0, 10.0"
    assert FLOAT64.rejects(Problem.of(a[:, :0], a[:0]), H200) == "there is nothing to multiply"
    assert choose(Problem.of(a[:, :0], a[:0]), H200).family == "simt"
    assert "32 bits" in str(FLOAT64.rejects(Problem.of(meta(64, 2**24)[:, :64], a), H200))


def test_parts_of_k_are_added_in_doubles() -> None:
    plan = FLOAT64.plan(Problem.of(meta(64, 4096), meta(4096, 64)), H200, Cut(SMALL, 8))
    assert entries(plan) == ["mma", "split_k_reduce"]
    assert plan.workspace_bytes >= 8 * 64 * 64 * 8
    sums = Promises.of(plan).sums
    assert "8 such parts" in sums and "float32" not in sums


def test_it_explains_itself() -> None:
    text = " ".join(str(tilesmith.explain(meta(2048, 2048), meta(2048, 2048), gpu="a100")).split())
    assert "multiplies doubles on the tensor cores" in text
    assert "One sum of float64 on the tensor cores" in text
    assert "That of sums in float64" in text


@pytest.mark.parametrize("tile", TILES_OF_FLOAT64, ids=str)
def test_tiles_divide_evenly_and_fit_an_a100(tile: Tile) -> None:
    assert tile.k % tile.k_round == 0
    assert tile.m // tile.warps_m <= 32 and tile.n // tile.warps_n <= 64
    assert tile.shared_bytes(8) <= A100.shared_bytes_per_block
    assert (tile.shared_bytes(8) + 1024) * tile.blocks_per_sm <= H200.shared_bytes_per_sm


def kernels_of(tile: Tile) -> list[Plan]:
    """In every layout; aligned, or one operand, or none."""
    found = []
    odd = [(0, 0)] * 4 + [(1, 1), (0, 1), (1, 0), (1, 1)]
    layouts = list(itertools.product("nt", repeat=2))
    for (x, y), (odd_a, odd_b) in zip(layouts * 2, odd, strict=True):
        a = meta(128, 256 + odd_a)[:, :256] if x == "n" else meta(256, 128 + odd_a)[:, :128].T
        b = meta(256, 128 + odd_b)[:, :128] if y == "n" else meta(128, 256 + odd_b)[:, :256].T
        found.append(planned(a, b, tile))
    return found


@pytest.mark.parametrize("tile", TILES_OF_FLOAT64, ids=str)
def test_the_machine_code_multiplies_doubles_and_spills_nothing(tile: Tile) -> None:
    plans = kernels_of(tile)
    for plan, found in zip(plans, instructions_of_each([plan.product.kernel for plan in plans]), strict=True):
        assert_nothing_spills(plan.product)
        assert_multiplies_doubles(plan, tile, found)


def assert_multiplies_doubles(plan: Plan, tile: Tile, found: Counter[str]) -> None:
    c = constants_of(plan.product.kernel, launch.Constants)
    products = tile.m * tile.n * tile.k // (tile.threads // 32) // (16 * 8 * 16)
    assert total(found, r"DMMA\.16x8x16") == total(found, r"DMMA.*") == products
    assert total(found, r"LDGSTS\.E\.BYPASS\.128.*") > 0 or 16 not in (c.a_copy_bytes, c.b_copy_bytes)
    assert (total(found, r"LDGSTS\.E(\.LTC\w+)?\.64.*") > 0) == (8 in (c.a_copy_bytes, c.b_copy_bytes))
    assert total(found, r"(LDL|STL)\b.*") == 0
    if not c.epilogue.any:
        assert total(found, r"F2F\..*") == total(found, r"LDG\..*") == 0
    # A lane reads 16 bytes at a time of both operands.
    reads = (tile.m // tile.warps_m + tile.n // tile.warps_n) // 8 * 2 * (tile.k // tile.k_round)
    parts = 0 if tile.warps_k == 1 else tile.m * tile.n // (tile.threads // tile.warps_k) // 2
    assert total(found, r"LDS\.128") >= reads + parts
    # Of the smallest tile a lane stores two results, by the instructions that store them one by one elsewhere.
    assert (total(found, r"STG\.E\.128") > 0) == (tile is not TILES_OF_FLOAT64[-1])


@pytest.mark.parametrize("gpu", ["a100", "b200"])
@pytest.mark.parametrize("tile", TILES_OF_FLOAT64, ids=str)
def test_kernels_of_other_architectures_do_not_spill(tile: Tile, gpu: str) -> None:
    device = KNOWN_GPUS[gpu]
    for plan in kernels_of(tile)[:: 3 if gpu == "a100" else 7]:
        used = compiler.resources(source.render(plan.product.kernel), device.arch)
        assert used.spill_store_bytes == used.spill_load_bytes == used.stack_bytes == 0
        assert used.registers * tile.threads * tile.blocks_per_sm <= device.registers_per_sm
