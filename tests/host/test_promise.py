"""The promise of `accuracy="fp32"`, held to a model of float32 products on tensor cores: the split into terms, the
range statistics and their check, and the sums, to the last bit on Hopper. It has the arithmetic of the kernels and none
of their addresses.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_core_model import KEPT_BITS, WGMMA_K, tensor_core_step

from tilesmith.bench.distributions import DISTRIBUTIONS, operands
from tilesmith.bench.errors import Error
from tilesmith.core.device import named
from tilesmith.core.params import TILE_K
from tilesmith.core.problem import Matrix, Problem
from tilesmith.kernels.fp32_split.terms import SCHEMES, SHORT_K, RowBlock
from tilesmith.kernels.hopper.family import _MIN_K
from tilesmith.kernels.mma.fp32 import _MIN_K as LEAST_DEPTH_OF_WARPS
from tilesmith.kernels.mma.fp32_launch import sum_k
from tilesmith.kernels.mma.tiles import MMA
from tilesmith.kernels.operand import round_up, runs_along_rows

Array = npt.NDArray[Any]
Verdict = Literal["terms suffice", "wide", "special"]

MAX_COMP, MAX_NORM = 1e-6, 3e-7  # errors that are allowed even where the float32 chain has smaller ones

# Of split.cu and range_stats.cuh.
THREADS, VECTOR, AT_ONCE = 256, 4, 4
LARGE, SAFE = 32, 2.0**-3
MAX_SCALED = np.float32(65504.0)
INFINITY = 0x7F800000
NO_ROWS = 1 << 23
NO_EXPONENT = -(1 << 20)


@dataclass(frozen=True)
class Sums:
    """How tensor cores add, and how often kernels promote their sums to float32."""

    step: int  # of K, that they add at once
    kept_bits: int
    promoted_k: int  # of ordinary values
    stage_k: int  # whose promoted sums are added before others, where values are not ordinary


HOPPER = Sums(step=WGMMA_K, kept_bits=KEPT_BITS, promoted_k=TILE_K, stage_k=TILE_K)
# Half as much at once, and a bit less is kept: what was published of Ampere's and Ada's (arXiv 2512.07004, 2510.15884).
AMPERE = Sums(
    step=8, kept_bits=KEPT_BITS - 1, promoted_k=sum_k(SCHEMES["fp32"].ordinary, named("a100")), stage_k=MMA[2]
)


def short_sums(
    a_terms: list[Array], b_terms: list[Array], depth: int, with_least_product: bool, sums: Sums = HOPPER
) -> Array:
    """For every `depth` of K the sum of all products of terms that count, in the order of several_terms.cuh."""
    terms, dtype = len(a_terms), "float16" if a_terms[0].dtype == np.float16 else "bfloat16"
    pairs = [(terms - 1 - p, p) for p in range(terms)]
    if terms == 2 and with_least_product:
        pairs.append((1, 1))
    pairs += [(a, order - a) for order in range(terms - 2, -1, -1) for a in range(order, -1, -1)]
    rows, whole = a_terms[0].shape
    columns = b_terms[0].shape[0]
    parts = whole // depth
    a_parts = [x.reshape(rows, parts, depth).transpose(1, 0, 2).astype(np.float64) for x in a_terms]
    b_parts = [x.reshape(columns, parts, depth).transpose(1, 2, 0).astype(np.float64) for x in b_terms]
    total = np.zeros((parts, rows, columns))
    for a_term, b_term in pairs:
        for k in range(0, depth, sums.step):
            ks = slice(k, k + sums.step)
            total = tensor_core_step(total, a_parts[a_term][:, :, ks], b_parts[b_term][:, ks, :], dtype, sums.kept_bits)
    return total.astype(np.float32)


@dataclass(frozen=True)
class RangeStats:
    """struct RangeStats of range_check.cuh, of a whole operand."""

    min_large: int
    max_inexact: int
    peak: np.float32
    special: bool


@dataclass(frozen=True)
class Split:
    """An operand, its rows against K, with K padded to whole steps."""

    terms: list[Array]
    factors: Array  # for each row, what undoes its scale
    full_range_exponents: Array
    range_stats: RangeStats


def exponents_of(bits: Array) -> Array:
    exponents: Array = np.maximum(bits.astype(np.int64) >> 23, 1) - 127
    return exponents


def bits_of(sizes: Array) -> Array:
    return (sizes.view(np.uint32) & 0x7FFFFFFF).astype(np.int64)


def scale_exponents(sample: Array) -> Array:
    return np.where(sample == 0, 0, np.clip(9 - exponents_of(sample), -63, 63))


def wide_scale_exponents(peaks: Array, depth: int) -> Array:
    return (124 - depth.bit_length()) // 2 - exponents_of(peaks)


def powers_of_two(exponents: Array) -> Array:
    assert ((exponents >= -126) & (exponents <= 127)).all()
    return np.ldexp(np.float32(1), exponents.astype(np.int32)).astype(np.float32)


def sampled_ks(samples: int, depth: int) -> Array:
    """sampled_k of task.cuh: where along K a row is sampled.

    >>> sampled_ks(8, 100).tolist()
    [0, 1, 12, 37, 62, 87, 98, 99]
    """
    edge, which = samples // 4, np.arange(samples)
    spread = (2 * (which - edge) + 1) * depth // (2 * (samples - 2 * edge))
    last = np.maximum(depth - samples + which, 0)
    found: Array = np.where(which < edge, np.minimum(which, depth - 1), np.where(which >= samples - edge, last, spread))
    return found


def samples_of(x: Array, block_rows: int, samples: int) -> Array:
    """The largest finite value of each row's sample, as bits. A row of zeros has its row block's."""
    sizes = bits_of(np.ascontiguousarray(x[:, sampled_ks(samples, x.shape[1])]))
    own = np.where(sizes < INFINITY, sizes, 0).max(axis=1)
    row_blocks = [slice(first, first + block_rows) for first in range(0, len(own), block_rows)]
    neighbours = np.concatenate([np.full_like(own[row_block], own[row_block].max()) for row_block in row_blocks])
    return np.where(own == 0, neighbours, own)


def peaks_of(x: Array, size: Array, undo: Array, step: int) -> Array:
    """The largest finite value of each row as a thread knows it, as bits: of the rounded ones of a few steps, or,
    where these cannot tell, of the values as they are."""
    rows, depth = x.shape
    whole = round_up(depth, AT_ONCE * step)
    sizes, values = (
        np.pad(y, ((0, 0), (0, whole - depth))).reshape(rows, -1, AT_ONCE, step)
        for y in (size, np.where(np.isfinite(x), np.abs(x), np.float32(0)))
    )
    known = sizes.astype(np.float32).max(axis=2)  # infinite or NaN where any is
    exact = bits_of(values).max(axis=2)
    rounded = bits_of((known * undo[:, None, None]).astype(np.float32))
    peaks: Array = np.where((known >= 2.0**-14) & (known < MAX_SCALED), rounded, exact).reshape(rows, -1).max(axis=1)
    return peaks


def large_of(size: Array, step: int) -> Array:
    """The large values of each row: threads add up what a few steps have of them, in float16, and drop a fraction."""
    rows, depth = size.shape
    whole = round_up(depth, AT_ONCE * step)
    parts = np.pad(np.fmin(size, np.float16(LARGE)), ((0, 0), (0, whole - depth))).reshape(rows, -1, AT_ONCE, step)
    added = parts[:, :, 0]
    for i in range(1, AT_ONCE):
        added = added + parts[:, :, i]
    assert added.dtype == np.float16
    large: Array = added.astype(np.int64).reshape(rows, -1).sum(axis=1) // LARGE
    return large


@np.errstate(all="ignore")
def split(x: Array, matrix: Matrix, corrects_bias: bool = False) -> Split:
    """The scaled float16 terms of an operand, and their range statistics. If it `corrects_bias`, for what tensor cores
    cut off, its factors are larger where a sampled value has more than 16 bits."""
    row_block = RowBlock.of(matrix, ())
    mn_major = runs_along_rows(matrix)
    lanes = row_block.rows // VECTOR if mn_major else THREADS // row_block.rows
    lines = THREADS // lanes
    step, samples = (lines, lines) if mn_major else (lanes * VECTOR, min(lanes, 32))

    depth = x.shape[1]
    term_depth = round_up(depth, TILE_K)
    k_chunk_depth = round_up(math.ceil(term_depth / row_block.k_chunks), TILE_K)
    sample = samples_of(x, row_block.rows, samples)
    scale = scale_exponents(sample)
    undo = powers_of_two(-scale)
    fine = (bits_of(np.ascontiguousarray(x[:, sampled_ks(samples, depth)])) & 0xFF).any(axis=1)
    factors = np.where(fine, undo * np.float32(1 + 2.0**-23), undo) if corrects_bias else undo

    x = np.pad(x, ((0, 0), (0, term_depth - depth)))
    rest = x * powers_of_two(scale)[:, None]
    terms: list[Array] = []
    for _ in range(SCHEMES["fp32"].ordinary.terms):
        terms.append(rest.astype(np.float16))
        rest = rest - terms[-1].astype(np.float32)
    size = np.abs(terms[0])
    is_lossy = (size < SAFE) & ((rest != 0) | ((size == 0) & (x != 0)))

    min_large = max_inexact = 0
    most = np.float32(0)
    special = not np.isfinite(x).all()
    k_chunk_exponents = []
    for k_chunk in range(row_block.k_chunks):
        ks = slice(k_chunk * k_chunk_depth, (k_chunk + 1) * k_chunk_depth)
        peaks = peaks_of(x[:, ks], size[:, ks], undo, step) if x[:, ks].size else np.zeros_like(sample)
        k_chunk_exponents.append(np.where(peaks == 0, NO_EXPONENT, -wide_scale_exponents(peaks, depth)))
        counted = (peaks != 0) | (row_block.k_chunks > 1)  # a row of zeros is exact
        scaled = peaks.astype(np.uint32).view(np.float32) * powers_of_two(scale)
        special = special or bool((scaled >= MAX_SCALED)[counted].any())
        min_large += int(large_of(size[:, ks], step)[counted].min(initial=NO_ROWS))
        max_inexact += int(is_lossy[:, ks].sum(axis=1)[counted].max(initial=0))
        most = max(most, scaled[counted].max(initial=np.float32(0)))
    full_range_exponents = np.max(k_chunk_exponents, axis=0)
    full_range_exponents[full_range_exponents == NO_EXPONENT] = 0
    return Split(terms, factors, full_range_exponents, RangeStats(min_large, max_inexact, most, special))


def verdict(a: RangeStats, b: RangeStats, depth: int) -> Verdict:
    if a.special or b.special:
        return "special"
    shared_large = np.float32(a.min_large + b.min_large - depth - math.ceil(depth / 256))
    inexact = np.float32(a.max_inexact) * b.peak + np.float32(b.max_inexact) * a.peak
    return "terms suffice" if inexact == 0 or inexact <= np.float32(2.0**13) * shared_large else "wide"


@np.errstate(all="ignore")
def wide_planes(x: Array, undoes: Array) -> tuple[list[Array], Array]:
    """The bfloat16 terms of an operand, and the one that tells infinities, NaNs and zeros from other numbers."""
    exponents = -undoes
    first = np.minimum(exponents, 127)
    x = np.pad(x, ((0, 0), (0, round_up(x.shape[1], TILE_K) - x.shape[1])))
    is_finite = np.isfinite(x)
    kinds = np.where(is_finite, np.sign(x), x)
    rest = np.where(is_finite, x, np.float32(0))
    rest = rest * powers_of_two(first)[:, None] * powers_of_two(exponents - first)[:, None]
    terms: list[Array] = []
    for _ in range(SCHEMES["fp32"].full_range.terms):
        terms.append(torch.from_numpy(rest).bfloat16().float().numpy())
        rest = rest - terms[-1]
    return terms, kinds


@dataclass(frozen=True)
class Product:
    values: Array
    verdict: Verdict


@np.errstate(all="ignore")
def ordinary_product(a: Split, b: Split, with_least_product: bool, sums: Sums = HOPPER) -> Array:
    total, *others = short_sums(a.terms, b.terms, sums.promoted_k, with_least_product, sums)
    for each in others:
        total = total + each
    result: Array = total * a.factors[:, None] * b.factors
    return result


@np.errstate(all="ignore")
def wide_product(a: Array, b: Array, a_undoes: Array, b_undoes: Array, special: bool, sums: Sums = HOPPER) -> Array:
    """Of the rows of a and the rows of b."""
    a_terms, a_kinds = wide_planes(a, a_undoes)
    b_terms, b_kinds = wide_planes(b, b_undoes)
    total = np.zeros((len(a), len(b)), dtype=np.float32)
    if special:
        # No sum of ones of either sign is infinite, and which infinities meet does not depend on the order.
        kinds = (a_kinds.astype(np.float64)[:, :, None] * b_kinds.astype(np.float64).T).sum(axis=1)
        total = np.where(np.isfinite(kinds), 0, kinds).astype(np.float32)
    promoted, of_stage = short_sums(a_terms, b_terms, WGMMA_K, False, sums), sums.stage_k // WGMMA_K
    for first in range(0, len(promoted), of_stage):
        of_step = np.zeros_like(total)
        for each in promoted[first : first + of_stage]:
            of_step = of_step + each
        total = total + of_step
    exponents = a_undoes[:, None] + b_undoes
    for _ in range(3):
        part = np.clip(exponents, -126, 127)
        total = total * powers_of_two(part)
        exponents = exponents - part
    return total


def product(a: torch.Tensor, b: torch.Tensor, sums: Sums = HOPPER) -> Product:
    """What the kernels make of the product."""
    p = Problem.of(a, b)
    a_rows, b_rows = a.numpy(), b.numpy().T
    a_split, b_split = split(a_rows, p.a), split(b_rows, p.b.transposed, corrects_bias=True)
    found = verdict(a_split.range_stats, b_split.range_stats, p.k)
    if found == "terms suffice":
        return Product(ordinary_product(a_split, b_split, p.k <= SHORT_K, sums), found)
    exponents = a_split.full_range_exponents, b_split.full_range_exponents
    return Product(wide_product(a_rows, b_rows, *exponents, found == "special", sums), found)


@np.errstate(all="ignore")
def float32_chain(a: torch.Tensor, b: torch.Tensor) -> Array:
    """The textbook's product: one fused multiplication and addition after the other."""
    x, y = a.double().numpy(), b.double().numpy()
    total = np.zeros((a.shape[0], b.shape[1]), dtype=np.float32)
    for k in range(a.shape[1]):
        total = (total + x[:, k, None] * y[k]).astype(np.float32)
    return total


@np.errstate(all="ignore")
def error_of(values: Array, a: torch.Tensor, b: torch.Tensor, among: Array) -> Error:
    """The errors of those elements that are `among`."""
    x, y = a.double().numpy(), b.double().numpy()
    exact = (x @ y)[among]
    difference = np.abs(values.astype(np.float64)[among] - exact)
    comp = np.where(difference == 0, 0.0, difference / (np.abs(x) @ np.abs(y))[among])
    wrong, size = np.square(difference).sum(), np.square(exact).sum()
    return Error(comp=float(comp.max(initial=0.0)), norm=0.0 if wrong == 0 else float(np.sqrt(wrong / size)))


def check_promise(a: torch.Tensor, b: torch.Tensor, sums: Sums = HOPPER) -> None:
    ours, chain = product(a, b, sums), float32_chain(a, b)
    for is_kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(is_kind(ours.values), is_kind(chain), err_msg=f"{is_kind}, {ours.verdict}")
    among = np.isfinite(chain)
    error, allowed = error_of(ours.values, a, b, among), error_of(chain, a, b, among)
    assert error.comp <= max(allowed.comp, MAX_COMP), f"{error}, the chain {allowed}, {ours.verdict}"
    assert error.norm <= max(allowed.norm, MAX_NORM), f"{error}, the chain {allowed}, {ours.verdict}"


def other_layout(x: torch.Tensor) -> torch.Tensor:
    """The same matrix with its columns one after the other in memory."""
    return x.T.contiguous().T


def one_step(sum_: float, *products: tuple[float, float]) -> float:
    a, b = np.zeros((1, WGMMA_K)), np.zeros((WGMMA_K, 1))
    for k, (x, y) in enumerate(products):
        a[0, k], b[k, 0] = x, y
    return float(tensor_core_step(np.array([[sum_]]), a, b)[0, 0])


def test_a_step_of_the_model_cuts_off_what_tensor_cores_do() -> None:
    assert one_step(1.0, (1.5, 2.0**-24)) == 1.0
    assert one_step(-1.0, (1.0, 1.0), (2.0**-12, 2.0**-13)) == 2.0**-25
    assert one_step(-1.0, (1.0, 1.0), (2.0**-13, 2.0**-13)) == 0.0
    assert one_step(1.0, *[(2.0**-12, 2.0**-13)] * 4) == 1 + 2.0**-23  # together they count
    assert one_step(1.0, *[(2.0**-13, 2.0**-13)] * 16) == 1.0  # and these do not
    assert one_step(-1.0, (-1.5, 2.0**-24)) == -1.0  # toward zero
    # The exponent of 1.5 * 1.5 is 0, not 1; that of a subnormal number is -14.
    assert one_step(0.0, (1.5, 1.5), (-1.5, 1.5), (2.0**-12, 2.0**-13)) == 2.0**-25
    assert one_step(0.0, (2.0**-24, 1.0), (2.0**-20, 2.0**-24)) == 2.0**-24
    assert one_step(0.0) == 0.0


def test_a_sum_of_planes_is_what_a_split_keeps() -> None:
    """Ordinary terms keep all but the last bits of ordinary values, full-range terms keep all of any."""
    x = np.ascontiguousarray(operands("normal", 8, 100, 1)[0].numpy())
    matrix = Problem.of(torch.from_numpy(x), torch.empty(100, 1)).a
    parts = split(x, matrix)
    whole = sum(p.astype(np.float64) for p in parts.terms) * parts.factors[:, None]
    np.testing.assert_allclose(whole[:, :100], x, rtol=2.0**-21, atol=0)
    wide, kinds = wide_planes(x, parts.full_range_exponents)
    whole = np.ldexp(sum(p.astype(np.float64) for p in wide), parts.full_range_exponents[:, None])
    np.testing.assert_array_equal(whole[:, :100], x)
    np.testing.assert_array_equal(kinds[:, :100], np.sign(x))


# Other kernels do shorter sums. At 300, K chunks of whole steps do not come out even.
DEPTHS = (_MIN_K, 64, 100, 300, SHORT_K, SHORT_K + 1, 1000)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_error_is_no_larger_than_that_of_a_float32_chain(name: str, depth: int) -> None:
    check_promise(*operands(name, 24, depth, 20))


@pytest.mark.parametrize("depth", (LEAST_DEPTH_OF_WARPS, 300, SHORT_K + 1, 1000))
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_so_it_is_in_the_sums_of_other_gpus(name: str, depth: int) -> None:
    """Which are shorter for that."""
    check_promise(*operands(name, 24, depth, 20), AMPERE)


@pytest.mark.parametrize("depth", (100, 300))
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_error_does_not_depend_on_the_layout(name: str, depth: int) -> None:
    """Which values are sampled does."""
    a, b = operands(name, 24, depth, 20, seed=1)
    check_promise(other_layout(a), other_layout(b))


@pytest.mark.parametrize("depth", (_MIN_K, 100, 1000))
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_single_row_keeps_the_promise(name: str, depth: int) -> None:
    check_promise(*operands(name, 1, depth, 40))


@pytest.mark.parametrize("name", ["uniform", "normal", "lognormal", "graded slices of K", "cancelling", "sparse"])
def test_long_sums_keep_the_promise(name: str) -> None:
    for sums in (HOPPER, AMPERE):
        check_promise(*operands(name, 12, 4000, 10), sums)


@pytest.mark.parametrize("most_of_a, most_of_b, depth", [(2**11, 2**7, 33), (2**11, 4, 1000), (2**6, 2**6, 1000)])
def test_integers_stay_exact(most_of_a: int, most_of_b: int, depth: int) -> None:
    """As long as their sums are below 2^24, whose exactness programs count on."""
    g = torch.Generator().manual_seed(0)
    a = torch.randint(-most_of_a, most_of_a + 1, (24, depth), generator=g).float()
    b = torch.randint(-most_of_b, most_of_b + 1, (depth, 20), generator=g).float()
    ours = product(a, b)
    assert ours.verdict == "terms suffice"
    np.testing.assert_array_equal(ours.values, (a.double() @ b.double()).numpy())


@cache
def verdict_on(name: str, depth: int) -> Verdict:
    a, b = operands(name, 24, depth, 20)
    p = Problem.of(a, b)
    return verdict(split(a.numpy(), p.a).range_stats, split(b.numpy().T, p.b.transposed).range_stats, depth)


@pytest.mark.parametrize("depth", (300, 1000))
@pytest.mark.parametrize("name", ["uniform", "normal", "rectified", "graded rows", "graded columns"])
def test_planes_suffice_for_ordinary_values(name: str, depth: int) -> None:
    """These must be fast."""
    assert verdict_on(name, depth) == "terms suffice"


@pytest.mark.parametrize("depth", (300, 1000))
@pytest.mark.parametrize("name", ["graded slices of K", "exponents within 60", "infinities and NaNs"])
def test_other_values_get_the_wide_scheme(name: str, depth: int) -> None:
    found = verdict_on(name, depth)
    assert found != "terms suffice"
    assert name != "infinities and NaNs" or found == "special"


@pytest.mark.parametrize("depth", (64, 300, 768, 3000))
@pytest.mark.parametrize(("name", "most"), (("normal", 5e-8), ("uniform", 1e-7)))
def test_sums_are_not_too_small_as_a_whole(name: str, most: float, depth: int) -> None:
    """Tensor cores alone would make them so, by 9e-8 and 1.8e-7 of themselves."""
    a, b = operands(name, 48, depth, 48)
    exact = a.double().numpy() @ b.double().numpy()
    for sums in (HOPPER, AMPERE):
        values = product(a, b, sums).values.astype(np.float64)
        assert abs(((values - exact) * exact).sum() / np.square(exact).sum()) < most


def matrix_of(values: list[list[float]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).float()


NEAR_SAFE = SAFE + 1022.5 * 2.0**-24  # terms lose all that they can of a value that is not inexact

floats = st.one_of(
    st.just(0.0),
    st.builds(
        lambda sign, significand, bits, exponent: (
            sign * math.ldexp((1 << 23 | significand) >> (24 - bits) << (24 - bits), exponent - 23)
        ),
        st.sampled_from((-1, 1)),
        st.integers(0, 2**23 - 1),
        st.integers(1, 24),
        st.one_of(st.integers(-60, 60), st.sampled_from((-60, 60))),
    ),
)


@st.composite
def small_operands(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]]]:
    m, k, n = draw(st.integers(1, 3)), draw(st.integers(1, 8)), draw(st.integers(1, 3))
    rows = [draw(st.lists(floats, min_size=k, max_size=k)) for _ in range(m)]
    columns = [draw(st.lists(floats, min_size=k, max_size=k)) for _ in range(n)]
    return rows, columns


def check_comp(a: torch.Tensor, b: torch.Tensor) -> None:
    ours = product(a, b)
    error = error_of(ours.values, a, b, np.ones_like(ours.values, dtype=bool))
    assert error.comp <= MAX_COMP, f"{error}, {ours.verdict}"


@settings(max_examples=100, deadline=None, derandomize=True)
@given(small_operands())
def test_the_verdict_is_right_about_any_values(rows_and_columns: tuple[list[list[float]], list[list[float]]]) -> None:
    """Of a sum of few products, every one counts in some element of the result."""
    rows, columns = rows_and_columns
    check_comp(matrix_of(rows), matrix_of(columns).T)


@pytest.mark.parametrize("depth", (3, _MIN_K, SHORT_K + 1))
def test_values_just_above_the_lossy_ones_lose_little(depth: int) -> None:
    """Both lose what they can, and so does their product."""
    a, b = torch.zeros(1, depth), torch.zeros(depth, 1)
    middle = depth // 2  # a sample of any number of them is there, or just before
    a[0, : middle + 1], b[middle + 1 :, 0] = 2.0**9, 2.0**9
    a[0, middle] = b[middle, 0] = NEAR_SAFE
    p = Problem.of(a, b)
    splits = split(a.numpy(), p.a), split(b.numpy().T, p.b.transposed)
    assert [each.range_stats.max_inexact for each in splits] == [0, 0]
    check_comp(a, b)


TINY, SMALL = 2.0**-83 * (1 + 2.0**-23), 2.0**-60 * 1.7


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ([2.0**60, SMALL, 0.0], [0.0, SMALL, 2.0**60]),  # small values count where large ones meet zeros
        ([2.0**71, 2.0**-100], [0.0, 1.0]),  # a value that vanishes when scaled is lossy
        ([2.0**83, TINY], [TINY, 2.0**83]),  # large values meet small ones, not too far apart in one row
    ],
)
def test_sizes_far_apart(row: list[float], column: list[float]) -> None:
    check_comp(matrix_of([row]), matrix_of([column]).T)


def test_a_slab_of_zeros_is_no_slab_of_large_values() -> None:
    """The large values of A and B do not meet, and the second half of B has none."""
    a, b = torch.zeros(4, 128), torch.zeros(128, 4)
    a[:, 0], a[:, 1], b[1] = 1, 2.0**-20 * (1 + 2.0**-13 + 2.0**-23), 1
    check_comp(a, b)


def test_a_row_of_zeros_in_one_slab_does_not_count_as_large_there() -> None:
    """All but one column of B are large in both halves; that one meets small values only."""
    a, b = torch.ones(4, 128), torch.ones(128, 4)
    a[:, 1] = 2.0**-20 * (1 + 2.0**-13 + 2.0**-23)
    b[:, 0] = 0
    b[1, 0] = 1
    check_comp(a, b)


def test_a_slab_of_zeros_leaves_the_scale_of_tiny_values_alone() -> None:
    a = torch.full((4, 128), 2.0**100)
    b = torch.zeros(128, 4)
    b[:64] = 2.0**-120 * (1 + torch.rand(64, 4, generator=torch.Generator().manual_seed(0)))
    check_comp(a, b)


def test_values_that_no_sample_saw_do_not_spoil_an_infinity() -> None:
    """An infinity hides its row's peak from the range statistics."""
    a, b = torch.full((8, 64), 2.0**-100), torch.ones(64, 8)
    a[:, 1], a[:, 3] = 2.0**100, float("inf")
    check_promise(a, b)
