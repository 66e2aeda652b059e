"""float32 in 16-bit terms that a warp multiplies in its registers: in the emulator, and who gets such products."""

import itertools

import pytest
import torch
from emulated import H200, empty, placed
from launched import constants_of, entries, parameters_of
from machine_code import assert_nothing_spills, instructions_of_each, total
from meta_tensors import meta

import tilesmith
from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.problem import Problem
from tilesmith.emulator import run
from tilesmith.kernels.fp32_split.words import RETURNS_IF_IN_RANGE, STOPS_IF_OUT_OF_RANGE
from tilesmith.kernels.mma import fp32, fp32_launch
from tilesmith.kernels.mma.tiles import LARGE_TILES_OF_HALVES, TILES_OF_TERMS, Cut, Tile
from tilesmith.kernels.mma.words import launch_words
from tilesmith.planner import choose
from tilesmith.runtime import compiler, source

pytestmark = pytest.mark.usefixtures("emulator_cache")

A100 = KNOWN_GPUS["a100"]
TURNED = list(itertools.product((False, True), (False, True)))


def drawn(rows: int, columns: int, is_turned: bool = False, shift: int = 1) -> torch.Tensor:
    """Lines at odd addresses, along rows or along columns."""
    rows, columns = (columns, rows) if is_turned else (rows, columns)
    own = placed(torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)), (columns + shift, 1), shift)
    return own.T if is_turned else own


def norm(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    exact = a.double() @ b.double()
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("tile", "turned"), zip(TILES_OF_TERMS, TURNED[1:], strict=True), ids=str)
def test_tiles_and_layouts(tile: Tile, turned: tuple[bool, bool]) -> None:
    """K of less than a tile and of several, whole and in parts; ordinary values, and those that have three terms. No
    matrix that a warp loads asks a bank twice. The other tests have both operands as they are, of the last tile."""
    for (m, k, n), scale in (((70, 65, 75), 1.0), ((20, 200, 140), 1.0), ((70, 600, 75), 1.0), ((70, 200, 75), 1e30)):
        a, b = drawn(m, k, turned[0]) * scale, drawn(k, n, turned[1])
        for split_k in (1, 2) if k == 600 else (1,):
            conflicts = dict[str, int]()
            found = run(fp32.plan(Problem.of(a, b), H200, Cut(tile, split_k)), a, b, bank_conflicts=conflicts)
            assert norm(found, a, b) <= 3e-7
            assert conflicts["mma_fp32"] == 0


@pytest.mark.parametrize(("tile", "turned"), zip(LARGE_TILES_OF_HALVES, TURNED[1:3], strict=True), ids=str)
def test_one_term_is_tf32(tile: Tile, turned: tuple[bool, bool]) -> None:
    """Results take turns in shared memory, which has no room for all: of lines that are aligned, and of others."""
    for (m, k, n), scale in (((140, 65, 75), 1.0), ((70, 200, 280), 1.0), ((70, 600, 76), 1.0), ((70, 200, 75), 1e30)):
        a, b = drawn(m, k, turned[0]) * scale, drawn(k, n, turned[1])
        problem = Problem.of(a, b, accuracy="tf32")
        for split_k in (1, 2) if k == 600 else (1,):
            plan, conflicts = fp32.plan(problem, A100, Cut(tile, split_k)), dict[str, int]()
            assert norm(run(plan, a, b, bank_conflicts=conflicts), a, b) <= (4e-4 if scale == 1.0 else 2e-5)
            assert conflicts["mma_fp32"] == 0


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 33, 200), (200, 5, 2), (1, 700, 1)])
def test_one_term_is_for_short_and_narrow_products_too(m: int, k: int, n: int) -> None:
    for scale in (1.0, 1e30):
        a, b = drawn(m, k) * scale, drawn(k, n)
        for split_k in {1, -(-k // 400)}:
            plan = fp32.plan(Problem.of(a, b, accuracy="tf32"), A100, Cut(LARGE_TILES_OF_HALVES[1], split_k))
            found = run(plan, a, b).double()
            assert ((found - a.double() @ b.double()).abs() <= 2**-10 * (a.double().abs() @ b.double().abs())).all()


def test_each_launch_says_which_terms_it_multiplies() -> None:
    problem = Problem.of(meta(1000, 1000), meta(1000, 1000), accuracy="tf32")
    plan = fp32.plan(problem, A100, Cut(LARGE_TILES_OF_HALVES[0]))
    ordinary, full_range = (launch_words(each, plan) for each in plan.launches if each.multiplies)
    assert "one product of 1 by 1 float16 terms" in ordinary.does
    assert "three products of 2 by 2 bfloat16 terms" in full_range.does
    assert (ordinary.stops, full_range.stops) == (STOPS_IF_OUT_OF_RANGE, RETURNS_IF_IN_RANGE)


def test_one_term_has_epilogues_and_batches() -> None:
    a, b = torch.randn(3, 40, 130), torch.randn(130, 36)
    epilogue = Epilogue(bias=torch.randn(36), activation="relu", residual=torch.randn(3, 40, 36))
    assert epilogue.bias is not None and epilogue.residual is not None
    problem = Problem.of(a, b, epilogue=epilogue, accuracy="tf32")
    found = run(fp32.plan(problem, A100, Cut(LARGE_TILES_OF_HALVES[1])), a, b, epilogue=epilogue)
    wanted = torch.relu(a.double() @ b.double() + epilogue.bias.double()) + epilogue.residual.double()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=3e-2)
    a[1, 3, 5], a[2, 7, 129], b[0, 2] = float("inf"), float("nan"), float("-inf")
    found = run(fp32.plan(Problem.of(a, b, accuracy="tf32"), A100, Cut(LARGE_TILES_OF_HALVES[1])), a, b)
    torch.testing.assert_close(found, a @ b, rtol=1e-3, atol=3e-2, equal_nan=True)


@pytest.mark.parametrize("k", [65, 96, 128, 129, 513])
def test_any_k_in_an_order_of_its_own(k: int) -> None:
    """Also in the shorter sums of other GPUs."""
    a, b = drawn(64, k), drawn(k, 64)
    for device in (H200, A100):
        plan = fp32.plan(Problem.of(a, b), device, Cut(TILES_OF_TERMS[-1]))
        assert constants_of(plan.product.kernel, fp32_launch.Constants).sum_k == (64 if device is H200 else 32)
        first = run(plan, a, b)
        assert norm(first, a, b) <= 3e-7
        assert torch.equal(run(plan, a, b, seed=k), first)


def test_batches_outputs_and_epilogues() -> None:
    a, b = torch.randn(3, 2, 40, 130), torch.randn(2, 130, 36)
    exact = a.double() @ b.double()
    for strides in ((2 * 40 * 36, 40 * 36, 36, 1), (1, 3, 6, 6 * 40), (2 * 40 * 41, 40 * 41, 41, 1)):
        out = empty((3, 2, 40, 36), strides, torch.float32)
        for split_k in (1, 2):
            run(fp32.plan(Problem.of(a, b, out=out), H200, Cut(TILES_OF_TERMS[-1], split_k)), a, b, out=out)
            assert norm(out, a, b) <= 3e-7
    epilogue = Epilogue(bias=torch.randn(36), activation="relu", residual=torch.randn(3, 2, 40, 36))
    assert epilogue.bias is not None and epilogue.residual is not None
    plan = fp32.plan(Problem.of(a, b, epilogue=epilogue), H200, Cut(TILES_OF_TERMS[-1]))
    wanted = torch.relu(exact + epilogue.bias.double()) + epilogue.residual.double()
    torch.testing.assert_close(run(plan, a, b, epilogue=epilogue).double(), wanted, rtol=1e-6, atol=1e-5)


def test_infinities_and_nans_are_where_they_belong() -> None:
    a, b = drawn(70, 200), drawn(200, 75)
    a[3, 5], a[7, 199], b[0, 2], b[150, 70] = float("inf"), float("nan"), float("-inf"), 0.0
    a[:, 150] = float("inf")
    found, wanted = run(fp32.plan(Problem.of(a, b), H200, Cut(TILES_OF_TERMS[-1])), a, b), a @ b
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_other_gpus_multiply_so_where_three_products_pay() -> None:
    """Not GeForce, which adds in float32 at half the rate. Small products are left to the CUDA cores."""
    large, small = Problem.of(meta(4096, 4096), meta(4096, 4096)), Problem.of(meta(128, 128), meta(128, 128))
    for gpu, device in KNOWN_GPUS.items():
        if gpu in ("a100", "a30", "a10", "l4", "l40s", "b200", "rtxpro6000"):
            assert entries(choose(large, device)) == ["split", "mma_fp32"] * 2
            assert choose(small, device).family == "simt"
        else:
            assert fp32.rejects(large, device) is not None
        as_tf32 = choose(large._replace(accuracy="tf32"), device)
        has_terms = (8, 0) <= device.capability != (9, 0)
        assert (as_tf32.family == "fp32_mma") == has_terms
    for few in (Problem.of(meta(4096, 64), meta(64, 4096)), Problem.of(meta(16, 4096), meta(4096, 4096))):
        assert "too few bits" in str(fp32.rejects(few, A100))
    with tilesmith.emulate("a100"):
        a, b = torch.randn(256, 522), torch.randn(522, 260)
        assert "fp32_mma" in tilesmith.explain(a, b, gpu="a100").plan
        assert norm(tilesmith.matmul(a, b), a, b) <= 3e-7


@pytest.mark.parametrize(("m", "k", "n", "longest"), [(17, 4096, 700, 1024), (1000, 20000, 1000, 4096)])
def test_few_outputs_have_long_sums_in_parts(m: int, k: int, n: int, longest: int) -> None:
    """As torch has them there. No part is empty."""
    for candidate in fp32.candidates(Problem.of(meta(m, k), meta(k, n)), A100):
        plan = candidate.plan()
        part_k = parameters_of(plan.product, fp32_launch.Parameters).part_k
        assert part_k <= longest and (plan.split_k - 1) * part_k < k <= plan.split_k * part_k
    whole = fp32.candidates(Problem.of(meta(2000, k), meta(k, 2000)), A100)
    assert next(iter(whole)).plan().split_k == 1


@pytest.mark.parametrize("gpu", ["a100", "l40s", "h200"])
@pytest.mark.parametrize("turned", TURNED, ids=str)
def test_the_kernels_do_not_spill(turned: tuple[bool, bool], gpu: str) -> None:
    """A word may, around the loop, where sums are so short that they take all registers."""
    a, b = (meta(1000, 1000).T if each else meta(1000, 1000) for each in turned)
    as_float32, as_tf32 = Problem.of(a, b), Problem.of(a, b, accuracy="tf32")
    cases = [(as_float32, tile) for tile in TILES_OF_TERMS] + [(as_tf32, tile) for tile in LARGE_TILES_OF_HALVES]
    for problem, tile in cases:
        plan = fp32.plan(problem, KNOWN_GPUS[gpu], Cut(tile))
        for launch in plan.launches:
            used = compiler.resources(source.render(launch.kernel), KNOWN_GPUS[gpu].arch)
            assert max(used.spill_store_bytes, used.spill_load_bytes) <= (0 if gpu == "h200" else 4), (
                launch.kernel.entry
            )


def test_the_machine_code_of_the_products() -> None:
    problem = Problem.of(meta(1000, 1000), meta(1000, 1000).T)
    plan = fp32.plan(problem, H200, Cut(TILES_OF_TERMS[0]))
    as_tf32 = fp32.plan(problem._replace(accuracy="tf32"), H200, Cut(LARGE_TILES_OF_HALVES[0]))
    for launch in (*plan.launches, *as_tf32.launches):
        assert_nothing_spills(launch)
    products = [each.kernel for each in (*plan.launches, *as_tf32.launches) if each.multiplies]
    ordinary, full_range, one_term, _ = instructions_of_each(products)
    assert total(ordinary, r"HMMA\.16816\.F32$") > 0 and total(full_range, r"HMMA\.16816\.F32\.BF16$") > 0
    assert total(one_term, r"HMMA\.16816\.F32$") == 2 * (32 // 16) * (64 // 16) * (64 // 8)  # in two loops
    for found in (ordinary, full_range, one_term):
        assert total(found, r"LDSM\.16\.M88\.4") > 0 and total(found, r"LDGSTS\..*") > 0
