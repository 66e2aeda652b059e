"""Products of float32 with 16-bit floats: what is planned for them, what ptxas makes of it, and what is refused."""

import itertools

import pytest
import torch
from launched import constants_of, kinds_of, maps_of
from machine_code import assert_nothing_spills, instructions, total
from meta_tensors import laid_out, meta, strided

import tilesmith
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import KNOWN_GPUS, named
from tilesmith.core.plan import Kernel, Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.fp64 import skinny
from tilesmith.kernels.hopper import constants as gemm
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.simt import family as simt
from tilesmith.planner import choose, is_possible

H200 = named("h200")
NARROW = [torch.float16, torch.bfloat16]
TYPES = [pair for narrow in NARROW for pair in ((torch.float32, narrow), (narrow, torch.float32))]
LAYOUTS = ["nn", "nt", "tn", "tt"]
Types = tuple[torch.dtype, torch.dtype]


def mixed(m: int, k: int, n: int, types: Types, accuracy: Accuracy = "fp32", layout: str = "nn") -> Problem:
    a, b = laid_out(m, k, layout=layout[0], dtype=types[0]), laid_out(k, n, layout=layout[1], dtype=types[1])
    return Problem.of(a, b, accuracy=accuracy, may_mix=True)


def product_of(plan: Plan) -> gemm.TermConstants:
    return constants_of(plan.product.kernel, gemm.TermConstants)


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("swap", [False, True])
def test_a_16_bit_operand_has_one_term_unless_values_need_the_full_range(types: Types, swap: bool) -> None:
    plan = hopper.plan(mixed(300, 700, 500, types), H200, hopper.Configuration(128, 128, swap_ab=swap))
    split, full_range_split = map(kinds_of, plan.launches[::2])
    product, full_range_product = (constants_of(launch.kernel, gemm.TermConstants) for launch in plan.launches[1::2])
    order = types[::-1] if swap else types
    expected = tuple(2 if dtype == torch.float32 else 1 for dtype in order)
    sources = {torch.float32: "float", torch.float16: "tilesmith::float16", torch.bfloat16: "tilesmith::bfloat16"}
    for made, multiplied, terms in ((split, product, expected), (full_range_split, full_range_product, (3, 3))):
        assert tuple(kind.terms for kind in made) == (multiplied.a_terms, multiplied.b_terms) == terms
        assert [kind.Source for kind in made] == [sources[dtype] for dtype in order]
    assert (product.terms, product.with_least_product) == (2, False)
    term_depth = 704
    lengths = [{*each.sizes[:2]} for each in maps_of(plan.product)[:2]]
    assert all(count * term_depth in sizes for count, sizes in zip(expected, lengths, strict=True))
    assert plan.problem.out.dtype == torch.float32


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_tf32_has_one_term_of_each(types: Types) -> None:
    plan = choose(mixed(1024, 1024, 1024, types, "tf32"), H200)
    c = product_of(plan)
    assert (c.a_terms, c.b_terms, c.terms) == (1, 1, 1)


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_two_products_cost_less_than_three(types: Types) -> None:
    for shape in ((4096, 4096, 4096), (1000, 777, 1300)):
        ours = choose(mixed(*shape, types), H200)
        float32 = choose(mixed(*shape, (torch.float32, torch.float32)), H200)
        assert ours.name.startswith("hopper ")
        assert 0.5 * float32.cycles < ours.cycles < float32.cycles
        assert str(ours.problem).endswith(" -> float32")
        assert " by " in str(ours.problem)


def test_other_families_and_gpus_take_one_type() -> None:
    for types in TYPES:
        problem = mixed(64, 64, 64, types)
        assert simt.rejects(problem, H200) == "takes operands of one type"
        assert skinny.rejects(mixed(4, 64, 64, types), H200) is not None
        assert is_possible(problem, H200)
        assert not is_possible(mixed(64, 20, 64, types), H200)  # too short for terms: they become float32
        assert not is_possible(mixed(64, 0, 64, types), H200)
        assert not is_possible(mixed(1, 500, 64, types), H200)  # nor for a vector
        assert not is_possible(mixed(304, 320, 16, types), H200)  # nor for short sums of few columns
        assert is_possible(mixed(304, 320, 17, types), H200) and is_possible(mixed(304, 513, 16, types), H200)
        for device in KNOWN_GPUS.values():
            assert is_possible(problem, device) == (device.capability == (9, 0))


def plans() -> list[tuple[str, Plan]]:
    """Tiles with the 16-bit operand on either side, in layouts by turns. Whether it is float16 or bfloat16 concerns the
    splits alone."""
    found = []
    tiles = [(128, 192, 2), (128, 128, 1), (128, 96, 2), (64, 192, 1), (64, 32, 1)]
    for i, ((tile_m, tile_n, cluster), side) in enumerate(itertools.product(tiles, (0, 1))):
        types = TYPES[side + i // 2 % 2 * 2]
        layout = LAYOUTS[(i + i // 4) % 4]
        problem = mixed(4096, 1024, 2048, types, layout=layout)
        plan = hopper.plan(problem, H200, hopper.Configuration(tile_m, tile_n, cluster))
        found.append((f"{tile_m}x{tile_n} {layout} {problem}", plan))
    for name, types in zip(("one step", "one step, A of 16 bits"), TYPES[:2], strict=True):
        one_step = mixed(128 * 140, 64, 520, types)
        found.append((name, hopper.plan(one_step, H200, hopper.Configuration(128, 256))))
    return found


PLANS = dict(plans())


def test_the_kernels_that_are_read_are_of_all_kinds() -> None:
    products = [product_of(plan) for plan in PLANS.values()]
    assert {(c.a_terms, c.b_terms) for c in products} == {(1, 2), (2, 1)}
    assert {(c.tile_m, c.a_terms) for c in products} == set(itertools.product((64, 128), (1, 2)))
    assert len({tuple(kind.Source for kind in kinds_of(plan.launches[0])) for plan in PLANS.values()}) == len(TYPES)
    assert {(c.a_mn_major, c.b_mn_major) for c in products} == set(itertools.product((False, True), repeat=2))


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_full_range_products_are_those_of_float32_and_all_are_those_of_float16(
    types: Types, layout: str, swap: bool
) -> None:
    def products(a: torch.dtype, b: torch.dtype) -> tuple[Kernel, Kernel]:
        problem = mixed(4096, 1024, 2048, (a, b), layout=layout)
        _, product, _, wide = hopper.plan(problem, H200, hopper.Configuration(128, 96, 2, swap_ab=swap)).launches
        return product.kernel, wide.kernel

    with_float16 = (torch.float16 if dtype == torch.bfloat16 else dtype for dtype in types)
    assert products(*types) == products(*with_float16)
    assert products(*types)[1] == products(torch.float32, torch.float32)[1]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_mixed_products_do_not_spill_and_multiply_twice(plan: Plan) -> None:
    for launch in plan.launches[:3]:  # what ptxas makes of full-range products is read in test_terms.py
        assert_nothing_spills(launch)
    found = instructions(plan.product.kernel)
    products = total(found, rf"HGMMA\.64x{product_of(plan).tile_n}x16\.F32")
    assert products > 0
    assert products % 8 == 0  # a step of 64 along K has four of each product of terms
    assert products % 12 != 0


# Every type in every kind of strides, on either side by turns: each operand has its own code in a split.
SPLITS = [
    (TYPES[2 * narrow + (narrow + i) % 2], strides)
    for i, strides in enumerate([(305, 1), (1, 201), (700, 2), (2, 500)])
    for narrow in range(2)
]


@pytest.mark.parametrize(("types", "strides"), SPLITS, ids=str)
def test_splits_of_16_bit_operands_of_every_kind_do_not_spill(types: Types, strides: tuple[int, int]) -> None:
    a, b = (strided((200, 304), strides, dtype=dtype) for dtype in types)
    plan = hopper.plan(Problem.of(a, b.T, may_mix=True), H200, hopper.Configuration(64, 64))
    for launch in plan.launches[::2]:
        assert_nothing_spills(launch)


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("accuracy", ["fp32", "tf32"])
def test_the_cpu_multiplies_in_float32(types: Types, accuracy: str) -> None:
    a, b = torch.randn(3, 5, 8).to(types[0]), torch.randn(8, 4).to(types[1])
    expected = torch.matmul(a.float(), b.float())
    result = tilesmith.matmul(a, b, accuracy=accuracy)
    assert result.dtype == torch.float32
    assert torch.equal(result, expected)
    assert torch.equal(tilesmith.matmul(a, b, accuracy=accuracy, out_dtype=torch.float32), expected)
    out = torch.empty(3, 5, 4)
    assert torch.equal(tilesmith.matmul(a, b, accuracy=accuracy, out=out), expected)
    assert torch.equal(tilesmith.matmul(a, tilesmith.pack(b, accuracy=accuracy), accuracy=accuracy), expected)


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_shapes_are_known_without_values(types: Types) -> None:
    a, b = meta(3, 5, 8, dtype=types[0]), meta(8, 4, dtype=types[1])
    result = tilesmith.matmul(a, b, accuracy="fp32")
    assert (result.shape, result.dtype) == ((3, 5, 4), torch.float32)
    compiled = torch.compile(lambda x, y: tilesmith.matmul(x, y, accuracy="fp32"), backend="aot_eager", fullgraph=True)
    x, y = torch.randn(5, 8).to(types[0]), torch.randn(8, 4).to(types[1])
    assert torch.equal(compiled(x, y), torch.matmul(x.float(), y.float()))


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("shapes", [((5, 8), (8, 4)), ((3, 5, 8), (8, 4)), ((8,), (8, 4))], ids=str)
def test_gradients_have_the_types_of_their_operands(
    types: Types, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    a, b = (torch.randn(shape).to(dtype).requires_grad_() for shape, dtype in zip(shapes, types, strict=True))
    gradients = torch.autograd.grad(tilesmith.matmul(a, b, accuracy="fp32").square().sum(), (a, b))
    expected = torch.autograd.grad(torch.matmul(a.float(), b.float()).square().sum(), (a, b))
    assert [gradient.dtype for gradient in gradients] == list(types)
    torch.testing.assert_close(gradients, expected)


def test_autocast_has_its_own_way() -> None:
    a, b = torch.randn(5, 8), torch.randn(8, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tilesmith.matmul(a, b, accuracy="fp32").dtype == torch.bfloat16


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_types_are_mixed_only_where_the_accuracy_is_given(types: Types) -> None:
    for make in (lambda *shape, dtype: torch.ones(shape, dtype=dtype), meta):
        a, b = make(5, 8, dtype=types[0]), make(8, 4, dtype=types[1])
        for accuracy in (None, "ieee"):
            with pytest.raises(RuntimeError, match="same dtype"):
                tilesmith.matmul(a, b, accuracy=accuracy)
        with pytest.raises(RuntimeError, match="same dtype"):
            tilesmith.matmul(a, tilesmith.pack(b))
        with pytest.raises(RuntimeError, match="same dtype"):
            tilesmith.matmul(tilesmith.pack(a, first=True), b)


def test_other_types_are_never_mixed() -> None:
    pairs = [(torch.float16, torch.bfloat16), (torch.float32, torch.float64), (torch.float32, torch.int8)]
    for x, y in pairs:
        with pytest.raises(RuntimeError, match="same dtype"):
            tilesmith.matmul(meta(5, 8, dtype=x), meta(8, 4, dtype=y), accuracy="fp32")


def test_the_result_of_mixed_types_is_float32() -> None:
    a, b = torch.randn(5, 8), torch.randn(8, 4).bfloat16()
    with pytest.raises(RuntimeError, match="out_dtype"):
        tilesmith.matmul(a, b, accuracy="fp32", out_dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
        tilesmith.matmul(a, b, accuracy="fp32", out=torch.empty(5, 4, dtype=torch.bfloat16))
