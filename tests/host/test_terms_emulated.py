"""float32 products of Hopper's tensor cores with any sizes and strides: the kernels that split operands into terms and
multiply these, in the emulator, against float64. Of ordinary values, and of such as need full-range terms."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from emulated import H200, assert_nothing_else_written, empty, normal, placed
from launched import constants_of, kinds_of, parameters_of

from tilesmith import emulator
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.fp32_split import launch as fp32_split
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper.constants import CommonConstants, TermConstants
from tilesmith.kernels.output import Store
from tilesmith.planner import packing

pytestmark = pytest.mark.usefixtures("emulator_cache")

Configuration = hopper.Configuration
Values = Callable[[torch.Tensor, torch.Tensor], object]  # changes both
SMALL = Configuration(64, 32)
FEW_SMS = replace(H200, sm_count=7)  # fewer blocks than tasks
MOST: dict[Accuracy, float] = {"fp32": 1e-6, "tf32": 2e-3}  # error, of the sum of absolute products
LAYOUTS = ["nn", "nt", "tn", "tt"]


def usual(a: torch.Tensor, b: torch.Tensor) -> None:
    """Rows and columns are of different sizes."""
    a.mul_(2.0 ** (torch.arange(a.shape[-2]) % 23 - 11)[:, None])
    b.mul_(2.0 ** (torch.arange(b.shape[-1]) % 19 - 9))


def graded(a: torch.Tensor, b: torch.Tensor) -> None:
    """What is small in a row meets what is large in a column: float16 would lose it."""
    powers = 2.0 ** torch.linspace(-30, 30, a.shape[-1]).round()
    a.mul_(powers)
    b.div_(powers[:, None])


def steep(a: torch.Tensor, b: torch.Tensor) -> None:
    """The same, and A is so small that only the scales of its own rows keep all bits of its terms."""
    powers = 2.0 ** torch.linspace(-60, -120, a.shape[-1]).round()
    a.mul_(powers)
    b.div_(powers[:, None])


def special(a: torch.Tensor, b: torch.Tensor) -> None:
    a[..., 0, 1], a[..., a.shape[-2] // 2, 0] = math.inf, math.nan
    b[..., 2, 0], b[..., 0, -1] = -math.inf, 0.0


def assert_right(
    c: Configuration,
    a: torch.Tensor,
    b: torch.Tensor,
    *values: Values,
    accuracy: Accuracy = "fp32",
    skips_zeros: bool = False,
    device: Device = H200,
    out: torch.Tensor | None = None,
) -> Plan:
    """Of the operands with each of these kinds of values in turn."""
    problem = Problem.of(a, b, out=out, accuracy=accuracy, skips_zeros=skips_zeros)
    assert hopper.rejects(problem, device) is None
    assert (reason := hopper.unsuited(problem, device, c)) is None, reason
    plan = hopper.plan(problem, device, c)
    plain = a.clone(), b.clone()
    for change in values:
        a.copy_(plain[0])
        b.copy_(plain[1])
        change(a, b)
        result = emulator.run(plan, a, b, out=out).double()
        exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        finite = size.isfinite()
        assert ((result - exact).abs() <= MOST[accuracy] * size)[finite].all()
        torch.testing.assert_close(result[~finite], exact[~finite], equal_nan=True)
    return plan


# Vectors, elements side by side, and elements apart; along K and along the rows.
STRIDES: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "rows": lambda rows, columns: (-(-columns // 4) * 4, 1),
    "odd rows": lambda rows, columns: (columns // 4 * 4 + 5, 1),
    "apart by rows": lambda rows, columns: (2 * columns + 1, 2),
    "columns": lambda rows, columns: (1, -(-rows // 4) * 4),
    "odd columns": lambda rows, columns: (1, rows // 4 * 4 + 5),
    "apart by columns": lambda rows, columns: (3, 3 * rows + 2),
}
# Rows and K: fewer than a row block, than a vector and than a step; and ends of all kinds.
SIZES = [(1, 70), (2, 95), (5, 128), (31, 100), (65, 127), (130, 66)]
LONG = [(3, 300), (70, 319)]
VERY_LONG = {"rows": [(1, 9000), (2, 8190)]}  # in K chunks, one after the other


@pytest.mark.parametrize(
    ("a_strides", "b_strides"),
    [("rows", "odd columns"), ("apart by columns", "odd rows"), ("columns", "apart by rows")],
)
def test_operands_of_any_strides_are_split(a_strides: str, b_strides: str) -> None:
    """The columns of B are placed as rows."""
    for rows, k in (*SIZES, *LONG, *VERY_LONG.get(a_strides, [])):
        n = max(133 - rows, 3) if k < 8000 else 9
        a = placed(normal(rows, k), STRIDES[a_strides](rows, k))
        b = placed(normal(n, k, seed=1), STRIDES[b_strides](n, k)).T
        plan = assert_right(SMALL, a, b, usual, graded)
        if rows > 1:
            kinds = [(x.mn_major, x.access) for x in kinds_of(plan.launches[0])]
            expected = [divmod(list(STRIDES).index(each), 3) for each in (a_strides, b_strides)]
            if any(access == fp32_split.Access.STRIDED for _, access in expected):
                expected = [(mn_major, fp32_split.Access.ANY) for mn_major, _ in expected]
            assert kinds == expected
        o, _ = parameters_of(plan.launches[0], fp32_split.Parameters).operands
        assert (o.k_chunks > 1) == (k > 8000 or (rows > 1 and "columns" in a_strides))


def test_row_blocks_of_several_long_rows_are_split() -> None:
    """There are such where there are very many rows."""
    plan = assert_right(SMALL, normal(4200, 260), normal(260, 8, seed=1), usual, graded, device=FEW_SMS)
    assert 256 >> parameters_of(plan.launches[0], fp32_split.Parameters).operands[0].log2_lanes == 4  # rows


@pytest.mark.parametrize("layout", LAYOUTS)
def test_terms_are_multiplied_in_all_layouts(layout: str) -> None:
    """And by clusters, with split_k, with swap_ab and as single terms."""
    which = LAYOUTS.index(layout)
    c = [Configuration(128, 64, cluster=2), replace(SMALL, split_k=2), replace(SMALL, swap_ab=True), SMALL][which]
    for m, k, n in ((70, 200, 40), (261, 253, 100), (9, 195, 132)):
        a, b = (
            normal(*shape) if x == "n" else normal(*shape[::-1]).T
            for shape, x in zip(((m, k), (k, n)), layout, strict=True)
        )
        assert_right(c, a, b, usual, graded, special, accuracy="tf32" if layout == "tt" else "fp32")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 70, 90), (3, 90, 48)),
        ((70, 101), (3, 101, 48)),
        ((2, 1, 33, 65), (3, 65, 17)),
        ((3, 1, 40, 68), (2, 1, 4, 68, 40)),
    ],
    ids=str,
)
def test_batches_are_split_and_multiplied_matrix_by_matrix(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for device in (H200, FEW_SMS):
        assert_right(SMALL, normal(*a), normal(*b, seed=1), usual, graded, device=device)


@pytest.mark.parametrize("accuracy", ["fp32", "tf32"])
def test_blocks_with_several_tiles_stop_after_the_first_if_results_do_not_count(accuracy: Accuracy) -> None:
    """The range check is made during the first tile; those of a cluster stop together."""
    c, few = Configuration(64, 32, cluster=2), replace(H200, sm_count=4)
    plan = assert_right(
        c, normal(330, 200), normal(200, 100, seed=1), graded, usual, special, accuracy=accuracy, device=few
    )
    assert plan.product.grid[0] <= 4  # for 24 tiles


@pytest.mark.parametrize(("tile_n", "device"), [(64, H200), (192, FEW_SMS)])
def test_single_steps_store_their_fragments_directly(tile_n: int, device: Device) -> None:
    """They do where lines are aligned. B is stationary if there are few blocks."""
    for m, n in ((70, 136), (1, 64), (300, 204), (130, 30)):
        out = empty((m, n), (-(-n // 4) * 4 + 8, 1), torch.float32)
        plan = assert_right(
            Configuration(64, tile_n), normal(m, 64), normal(64, n), usual, graded, device=device, out=out
        )
        assert_nothing_else_written(out)
        assert constants_of(plan.product.kernel, CommonConstants).out_store is (
            Store.LINES if n == 30 else Store.DIRECT
        )


@pytest.mark.parametrize(
    ("c", "layout"), [(Configuration(128, 64), "t"), (Configuration(128, 32, cluster=2, split_k=2), "n")], ids=str
)
def test_an_a_is_split_in_registers(c: Configuration, layout: str) -> None:
    """What the product counts of rows in every part of K is what full-range terms need."""
    for m, k, n in ((72, 200, 40), (264, 252, 104), (8, 196, 8), *(((140, 700, 64),) if layout == "n" else ())):
        a = normal(m, k) if layout == "n" else normal(k, m).T
        plan = assert_right(replace(c, rs=True), a, normal(k, n), usual, graded, special)
        assert plan.product.kernel.entry == "gemm_fp32_rs"


def test_operands_of_a_batch_and_with_swap_ab_are_split_in_registers() -> None:
    batch = replace(SMALL, rs=True, split_k=2)
    assert_right(batch, normal(3, 72, 200), normal(3, 200, 40), steep, usual)
    assert_right(replace(SMALL, rs=True, swap_ab=True), normal(30, 200), normal(200, 136), usual, graded, special)


@pytest.mark.parametrize("word", [0xFF800000, 0x7F800000, 0])
def test_nothing_depends_on_what_a_workspace_held_before(word: int) -> None:
    """An operand's scales end with its last row, and a warp has 16 rows: those past the last one had a scale of
    infinity, their zeros became NaNs, and the product was one of full-range terms."""
    a, b = normal(72, 200), normal(200, 40)
    for c in (replace(SMALL, rs=True), replace(SMALL, rs=True, split_k=2), replace(SMALL, split_k=2)):
        plan = hopper.plan(Problem.of(a, b, accuracy="fp32"), H200, c)
        assert emulator.run(plan, a, b, stale_word=word).equal(emulator.run(plan, a, b))


def packed_terms(tensor: torch.Tensor, first: bool) -> torch.Tensor:
    """As prepared.pack makes them: without knowing what they will be multiplied with."""
    k = tensor.shape[-1 if first else -2]
    a, b = (tensor, torch.empty(k, 1)) if first else (torch.empty(1, k), tensor)
    plan = packing(Problem.of(a, b, packed=(first, not first)), H200)
    assert plan is not None
    return emulator.run(plan, a, b)


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "packed"),
    [
        ((70, 200), (200, 43), (False, True)),
        ((3, 33, 70), (3, 70, 40), (True, False)),
        ((33, 2100), (2100, 40), (True, True)),
    ],
    ids=str,
)
def test_packed_terms_are_those_of_a_split(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], packed: tuple[bool, bool]
) -> None:
    """The product is the same to the last bit, whether these or, for other values, full-range terms are multiplied."""
    for change in (usual, graded):
        a, b = normal(*a_shape), normal(*b_shape[:-2], *b_shape[:-3:-1], seed=1).mT
        change(a, b)
        terms = tuple(packed_terms(x, i == 0) if packed[i] else None for i, x in enumerate((a, b)))
        plan = hopper.plan(Problem.of(a, b, packed=packed), H200, SMALL)
        result = emulator.run(plan, a, b, packed=(terms[0], terms[1]))
        expected = emulator.run(hopper.plan(Problem.of(a, b), H200, SMALL), a, b)
        torch.testing.assert_close(result, expected, rtol=0, atol=0)


def zeroed(a: torch.Tensor, b: torch.Tensor, keep: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Nothing else is so small that it would need full-range terms, whose products skip nothing."""
    for x in (a, b):
        x.copy_(x.sign() * x.abs().clamp(0.25, 2))
    usual(a, b)
    a.copy_(keep(a))
    b.copy_(keep(b))


ZEROS: list[Values] = [
    lambda a, b: zeroed(a, b, torch.tril),
    lambda a, b: zeroed(a, b, torch.triu),
    lambda a, b: zeroed(a, b, lambda x: x.tril(3).triu(-3)),
    lambda a, b: zeroed(a, b, torch.zeros_like),
    lambda a, b: zeroed(a, b, lambda x: x.index_fill(1, torch.arange(130), 0)),
    lambda a, b: zeroed(a, b, lambda x: x.index_fill(0, torch.arange(65, len(x)), 0)),
]


@pytest.mark.parametrize(
    ("c", "layout", "depth"),
    [(Configuration(64, 64), "nn", 200), (Configuration(128, 128, cluster=2), "tt", 330)],
    ids=str,
)
def test_skipped_zeros_add_nothing(c: Configuration, layout: str, depth: int) -> None:
    """Of triangles, of bands, of rows and columns that are all zero, and of none at all. How many rows are counted
    together depends on K."""
    for (m, k, n), values in (
        ((150, depth, 170), [*ZEROS, usual, graded, special]),
        ((190, depth + 50, 180), [ZEROS[0], special]),
    ):
        a, b = (
            normal(*shape) if x == "n" else normal(*shape[::-1]).T
            for shape, x in zip(((m, k), (k, n)), layout, strict=True)
        )
        plan = assert_right(c, a, b, *values, skips_zeros=True)
        assert constants_of(plan.product.kernel, TermConstants).skips_zeros
