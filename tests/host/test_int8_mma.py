"""8-bit integers on the tensor cores: in the emulator, where every bit is right, and their machine code."""

import itertools

import pytest
import torch
from emulated import H200, placed
from launched import entries
from machine_code import assert_nothing_spills, instructions_of_each, total

import tilesmith
from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.emulator import run
from tilesmith.kernels.mma import int8
from tilesmith.kernels.mma.tiles import TILES_OF_PAIRS, Cut, Tile
from tilesmith.planner import choose

pytestmark = pytest.mark.usefixtures("emulator_cache")

SMALL = TILES_OF_PAIRS[-1]


def drawn(shape: tuple[int, ...], layout: str, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """By rows or by columns, in lines that are aligned, in capitals in others; over the whole range of the type."""
    rows, columns = shape[-2:] if layout in "nN" else shape[:-3:-1]
    info, generator = torch.iinfo(dtype), torch.Generator().manual_seed(seed)
    values = torch.randint(info.min, info.max + 1, (*shape[:-2], rows, columns), generator=generator).to(dtype)
    shift = int(layout.isupper())
    pitch = -(-columns // 16) * 16 + shift
    strides = [pitch, 1]
    for size in (rows, *shape[-3:0:-1]):
        strides.insert(0, strides[0] * size)
    own = placed(values, tuple(strides[-values.dim() :]), shift)
    return own if layout in "nN" else own.mT


def exact(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (a.long() @ b.long()).to(torch.int32).to(dtype)


@pytest.mark.parametrize("layouts", [("n", "t"), ("n", "n"), ("t", "n"), ("N", "T"), ("T", "N")], ids="".join)
def test_layouts_types_and_parts_of_k(layouts: tuple[str, str]) -> None:
    dtype = torch.uint8 if layouts == ("t", "n") else torch.int8
    for m, k, n in ((130, 1030, 152), (33, 37, 66), (1, 1, 1)):
        a, b = drawn((m, k), layouts[0], dtype), drawn((k, n), layouts[1], dtype, seed=1)
        for out_dtype, split_k in itertools.product((torch.int32, torch.int8), (1, 3) if k == 1030 else (1,)):
            if out_dtype == torch.int8 and dtype == torch.uint8:
                continue
            conflicts = dict[str, int]()
            plan = int8.plan(Problem.of(a, b, out_dtype=out_dtype), H200, Cut(SMALL, split_k))
            found = run(plan, a, b, bank_conflicts=conflicts)
            assert torch.equal(found, exact(a, b, out_dtype))
            assert conflicts["mma_large"] == 0


@pytest.mark.parametrize("tile", TILES_OF_PAIRS, ids=str)
def test_tiles(tile: Tile) -> None:
    a, b = drawn((150, 200), "n", torch.int8), drawn((200, 290), "t", torch.int8, seed=1)
    found = run(int8.plan(Problem.of(a, b, out_dtype=torch.int32), H200, Cut(tile)), a, b, seed=3)
    assert torch.equal(found, exact(a, b, torch.int32))


def test_batches_and_outputs() -> None:
    """Some of them share a matrix, which is copied once; results by columns, and in lines that are apart."""
    a, b = drawn((3, 2, 20, 34), "N", torch.int8), drawn((2, 34, 24), "n", torch.int8, seed=1)
    wide = torch.empty(3, 2, 20, 50, dtype=torch.int8)
    for out in (None, wide[..., 3:27], wide[..., 1:49:2], torch.empty(3, 2, 24, 20, dtype=torch.int8).mT):
        plan = int8.plan(Problem.of(a, b, out=out), H200, Cut(SMALL))
        assert torch.equal(run(plan, a, b, out=out), exact(a, b, torch.int8))


def test_sums_wrap_around() -> None:
    a = torch.full((1, 40_000), 255, dtype=torch.uint8)
    plan = int8.plan(Problem.of(a, a.T, out_dtype=torch.int32), H200, Cut(SMALL))
    assert run(plan, a, a.T).item() == 255 * 255 * 40_000 - 2**32


@pytest.mark.parametrize("gpu", ["h200", "a100", "rtx4090", "rtx5090"])
def test_what_is_chosen(gpu: str) -> None:
    def chosen(m: int, k: int, n: int, *, turned: bool = False) -> Plan:
        a, b = (torch.empty(shape, dtype=torch.int8, device="meta") for shape in ((m, k), (n, k) if turned else (k, n)))
        return choose(Problem.of(a, b.T if turned else b, out_dtype=torch.int32), KNOWN_GPUS[gpu])

    assert entries(chosen(4096, 4096, 4096, turned=True)) == ["mma_large"]
    assert entries(chosen(4096, 4096, 4096)) == ["turn", "mma_large"]
    assert entries(chosen(4096, 4095, 4096, turned=True)) == ["turn", "turn", "mma_large"]
    assert chosen(20, 10, 20).family == "simt"


def test_what_it_cannot_do() -> None:
    a = torch.empty(64, 64, dtype=torch.int8, device="meta")
    for operand, out_dtype in ((a.to(torch.int16), torch.int32), (a.half(), None)):
        problem = Problem.of(operand, operand, out_dtype=out_dtype)
        assert "is for operands of int8 or uint8" in str(int8.rejects(problem, H200))
    assert int8.rejects(Problem.of(a, a), KNOWN_GPUS["t4"]) == "is for compute capability 8.0 and later"
    assert int8.rejects(Problem.of(a[:, :0], a[:0]), H200) == "there is nothing to multiply"


def test_it_explains_itself() -> None:
    a = torch.empty(2048, 2048, dtype=torch.uint8, device="meta")
    text = str(tilesmith.explain(a, a, out_dtype=torch.int32, gpu="a100"))
    assert "copies B to lines along K" in text
    assert "multiplies 8-bit integers on the tensor cores" in text
    assert "64 of K" in " ".join(text.split())
    assert "exact, with the wrap-around of int32" in text


@pytest.mark.parametrize("tile", TILES_OF_PAIRS, ids=str)
def test_the_machine_code(tile: Tile) -> None:
    dtype = torch.uint8 if tile is SMALL else torch.int8
    a = torch.empty(128, 128, dtype=dtype, device="meta")
    for device in (H200, KNOWN_GPUS["a100"]):
        launch = int8.plan(Problem.of(a, a.T, out_dtype=torch.int32), device, Cut(tile)).product
        assert_nothing_spills(launch)
    (found,) = instructions_of_each([launch.kernel])
    letter = "S" if dtype == torch.int8 else "U"
    products = tile.m * tile.n * tile.k // (tile.threads // 32) // (16 * 8 * 16)
    assert total(found, rf"IMMA\.16832\.{letter}8\.{letter}8.*") == 2 * products  # in the loop and after it
    assert total(found, r"LDSM\.16\.M88\.4") > 0
    assert total(found, r"LDGSTS\..*") > 0
