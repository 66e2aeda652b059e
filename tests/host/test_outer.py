"""float32 products of a short K: in the emulator, to the bit of a chain of multiply-adds, and what takes them."""

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
from tilesmith.kernels.outer import outer
from tilesmith.planner import choose

pytestmark = pytest.mark.usefixtures("emulator_cache")


def drawn(shape: tuple[int, ...], layout: str, seed: int) -> torch.Tensor:
    """By rows or by columns; in lines that are apart by an odd number of elements in capitals. All else is NaN."""
    rows, columns = shape[-2:] if layout in "nN" else shape[:-3:-1]
    values = torch.randn(*shape[:-2], rows, columns, generator=torch.Generator().manual_seed(seed))
    pitch = -(-columns // 4) * 4 + int(layout.isupper())
    strides = [pitch, 1]
    for size in (rows, *shape[-3:0:-1]):
        strides.insert(0, strides[0] * size)
    own = placed(values, tuple(strides[-values.dim() :]), int(layout.isupper()))
    return own if layout in "nN" else own.mT


def chain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One multiply-add after the other: a product is exact in double, and so is its sum with a float, but for what the
    rounding to float does not see."""
    sums = torch.zeros(*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    for i in range(a.shape[-1]):
        sums = (sums.double() + a[..., :, i, None].double() * b[..., i, None, :].double()).float()
    return sums


@pytest.mark.parametrize("layouts", ["nn", "nt", "tn", "TT", "NN"])
def test_layouts_and_edges(layouts: str) -> None:
    for m, k, n in ((70, 5, 300), (9, 32, 131), (129, 17, 128), (1, 1, 1)):
        a, b = drawn((m, k), layouts[0], seed=m), drawn((k, n), layouts[1], seed=n)
        for pitch, shift in ((-(-n // 4) * 4, 0), (n + 1, 0), (-(-n // 4) * 4, 1)):
            out = torch.full((m * pitch + 4,), torch.nan).as_strided((m, n), (pitch, 1), shift)
            plan = outer.plan(Problem.of(a, b, out=out), H200)
            assert torch.equal(run(plan, a, b, out=out), chain(a, b))
            assert out.untyped_storage().nbytes() // 4 - m * n == int(
                torch.empty(0).set_(out.untyped_storage()).isnan().sum()
            )


def test_batches_and_outputs() -> None:
    """Some of the batch share a matrix; results by columns, and apart."""
    a, b = drawn((3, 2, 20, 6), "N", seed=1), drawn((2, 6, 24), "n", seed=2)
    wide = torch.empty(3, 2, 20, 50)
    for out in (None, wide[..., 3:27], wide[..., 1:49:2], torch.empty(3, 2, 24, 20).mT):
        plan = outer.plan(Problem.of(a, b, out=out), H200)
        assert torch.equal(run(plan, a, b, out=out), chain(a, b))


def test_what_is_chosen() -> None:
    def chosen(m: int, k: int, n: int, accuracy: Accuracy = "fp32") -> str:
        a, b = torch.empty(m, k, device="meta"), torch.empty(k, n, device="meta")
        return choose(Problem.of(a, b, accuracy=accuracy), H200).family

    assert {chosen(4096, k, n) for k, n in itertools.product((1, 3, 8), (8192, 8191))} == {outer.NAME}
    assert chosen(32768, 8, 32768) == chosen(4000, 1, 5001, "tf32") == chosen(4000, 12, 5001, "ieee") == outer.NAME
    assert outer.NAME not in {chosen(4096, 33, 8192), chosen(4096, 17, 8192, "tf32"), chosen(5, 2, 4)}
    assert chosen(256, 32, 256) == "fp64_mma"


def test_sums_have_the_bits_of_simt() -> None:
    """The accuracy "ieee" promises one chain, whoever makes it."""
    a, b = drawn((40, 12), "n", seed=3), drawn((12, 70), "t", seed=4)
    problem = Problem.of(a, b, accuracy="ieee")
    (simt,) = [each for each in tilesmith.kernels.FAMILIES if each.is_fallback]
    by_simt = min(simt.candidates(problem, H200), key=lambda each: each.cycles).plan()
    assert torch.equal(run(by_simt, a, b), run(outer.plan(problem, H200), a, b))


def test_what_it_cannot_do() -> None:
    a = torch.empty(64, 8, device="meta")
    for dtype in (torch.float16, torch.float64):
        assert outer.rejects(Problem.of(a.to(dtype), a.to(dtype).T), H200) == "is for operands and outputs of float32"
    assert outer.rejects(Problem.of(a.T, a), H200) == "is for a K of 1 to 32"
    assert outer.rejects(Problem.of(a[:, :0], a.T[:0]), H200) == "is for a K of 1 to 32"
    assert outer.rejects(Problem.of(a.repeat(1, 3), a.repeat(1, 3).T, accuracy="tf32"), H200) == "is for a K of 1 to 16"
    assert outer.rejects(Problem.of(a, a.T), KNOWN_GPUS["a100"]) == "was measured on compute capability 9.0 alone"
    relu = Problem.of(a, a.T, epilogue=Epilogue(activation="relu"))
    assert outer.rejects(relu, H200) == "stores sums as they are"


def test_it_explains_itself() -> None:
    a = torch.empty(4096, 8, device="meta")
    text = " ".join(str(tilesmith.explain(a, a.T, gpu="h200")).split())
    assert entries(outer.plan(Problem.of(a, a.T), H200)) == ["outer"]
    assert "multiplies on the CUDA cores, with all of K in shared memory" in text
    assert "One chain of float32 multiply-adds, in the order of K." in text


@pytest.mark.sass
@pytest.mark.parametrize("vectors", [True, False])
def test_the_machine_code(vectors: bool) -> None:
    a, b = torch.empty(128, 8, device="meta"), torch.empty(8, 128 if vectors else 127, device="meta")
    launch = outer.plan(Problem.of(a, b), H200).product
    assert_nothing_spills(launch)
    (found,) = instructions_of_each([launch.kernel])
    assert total(found, r"STG\.E\.EF\.128" if vectors else r"STG\.E\.EF") > 0
