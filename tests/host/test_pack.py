"""Packed operands: what is planned for them, what the CPU does with them, and what is refused."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from launched import addresses_of, entries, parameters_of
from machine_code import assert_nothing_spills, instructions, total
from meta_tensors import laid_out, meta

import tilesmith
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import KNOWN_GPUS, named
from tilesmith.core.params import Address
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.fp32_split import launch as fp32_split
from tilesmith.kernels.fp64 import skinny
from tilesmith.kernels.hopper import family as hopper
from tilesmith.planner import choose, packing

H200 = named("h200")
ONE_PACKED = [(True, False), (False, True)]
SIZES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((4096, 4096), (4096, 4096)),
    ((128, 4096), (4096, 4096)),
    ((301, 999), (999, 203)),
    ((17, 70000), (70000, 40)),  # K chunks of K
    ((7, 33, 65), (7, 65, 90)),
    ((7, 1, 33, 65), (9, 65, 90)),
    ((5, 33, 65), (65, 90)),
]


def pairs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for (a, b), x, y in itertools.product(SIZES, "nt", "nt"):
        yield laid_out(*a, layout=x), laid_out(*b, layout=y)
    yield meta(1).as_strided((200, 300), (700, 2)), meta(300, 101)[:, :100]


def packed_alone(tensor: torch.Tensor, first: bool, accuracy: Accuracy = "fp32") -> Plan:
    """As executor.pack plans it."""
    k = tensor.shape[-1 if first else -2]
    a, b = (tensor, meta(k, 1)) if first else (meta(1, k), tensor)
    plan = packing(Problem.of(a, b, accuracy=accuracy, packed=(first, not first)), H200)
    assert plan is not None
    return plan


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("accuracy", ["fp32", "tf32"])
def test_what_is_packed_is_not_split_again(accuracy: Accuracy, swap: bool) -> None:
    c = hopper.Configuration(128, 128, swap_ab=swap)
    plans = {
        packed: hopper.plan(Problem.of(meta(256, 512), meta(512, 640), accuracy=accuracy, packed=packed), H200, c)
        for packed in [(False, False), *ONE_PACKED, (True, True)]
    }
    pair = ["split", "gemm_fp32"]
    assert {packed: entries(plan) for packed, plan in plans.items()} == {
        (False, False): [*pair, *pair],
        (True, False): [*pair, *pair],
        (False, True): [*pair, *pair],
        (True, True): ["gemm_fp32", *pair],
    }
    for packed, plan in plans.items():
        wide_split = plan.launches[-2]
        sources = {each.buffer for each in addresses_of(wide_split)}
        assert {"a", "b"} <= sources  # values that need it are split anew
        if packed == (True, True):
            continue
        split = plan.launches[0]
        assert parameters_of(split, fp32_split.Parameters).count == 2 - sum(packed)
        own = {"ab"[i] for i in (0, 1) if not packed[i]}
        assert {each.buffer for each in addresses_of(split)} == {"workspace"} | own


def operand_of(plan: Plan) -> fp32_split.Operand:
    """The one that a plan packs."""
    (split,) = plan.launches
    p = parameters_of(split, fp32_split.Parameters)
    assert p.count == 1
    return p.operands[0]


def offset_in(buffer: str, pointer: Address | None) -> int:
    assert pointer is not None and pointer.buffer == buffer
    return pointer.offset


def test_a_packed_batch_is_not_folded_into_rows() -> None:
    """Its terms were made without knowing what it would be multiplied with."""
    a, b = meta(5, 33, 65), meta(65, 90)
    assert (Problem.of(a, b).m, Problem.of(a, b).batch) == (165, ())
    for packed in ((True, False), (True, True)):
        problem = Problem.of(a, b, packed=packed)
        assert (problem.m, problem.batch) == (33, (5,))
    assert Problem.of(a, b, packed=(False, True)).m == 165


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (128, 4096, 4096), (1000, 777, 1300)], ids=str)
def test_packed_operands_cost_less_time_and_workspace(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    plans = [
        choose(Problem.of(meta(m, k), meta(k, n), packed=packed), H200)
        for packed in ((False, False), (False, True), (True, True))
    ]
    assert all(plan.name.startswith("hopper ") for plan in plans)
    cycles = [plan.cycles for plan in plans]
    assert cycles[0] > cycles[1] > cycles[2]
    # An operand that is split in registers has no terms in memory: what is packed saves those of others.
    candidates = [each for each in hopper.candidates(plans[0].problem, H200) if not each.name.endswith(" rs")]
    of_terms = min(candidates, key=lambda each: each.cycles).plan()
    assert of_terms.name == plans[0].name or plans[0].name.endswith(" rs")
    sizes = [plan.workspace_bytes for plan in (of_terms, *plans[1:])]
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_packed_operand_costs_what_its_planes_would_have() -> None:
    """Of a small `a` and a large packed `b`, the split is nearly free; the rest costs what it did."""
    c = hopper.Configuration(64, 64, cluster=2)
    costs = [
        hopper.plan(Problem.of(meta(128, 4096), meta(4096, 4096), packed=packed), H200, c).cycles
        for packed in ((False, False), (False, True), (True, True))
    ]
    b_bytes, a_bytes = 4 * 4096 * 4096, 4 * 128 * 4096
    assert costs[0] - costs[1] == pytest.approx(1.13 * 2 * b_bytes / 2320)
    assert costs[1] - costs[2] == pytest.approx(1.13 * (15600 + 2 * a_bytes / 2320))


def test_few_rows_are_multiplied_from_the_tensor_itself() -> None:
    plan = choose(Problem.of(meta(8, 4096), meta(4096, 4096), packed=(False, True)), H200)
    assert plan.name == "skinny"
    buffers = {each.buffer for launch in plan.launches for each in addresses_of(launch)}
    assert "b" in buffers
    assert "b_packed" not in buffers
    assert plan.launches == skinny.plan(Problem.of(meta(8, 4096), meta(4096, 4096)), H200).launches


def test_nothing_is_packed_that_no_product_would_read() -> None:
    def plan(a: torch.Tensor, b: torch.Tensor, accuracy: Accuracy = "fp32", gpu: str = "h200") -> Plan | None:
        return packing(Problem.of(a, b, accuracy=accuracy, packed=(False, True)), named(gpu))

    assert plan(meta(1, 64), meta(64, 64)) is not None
    assert plan(meta(1, 64), meta(64, 64), "ieee") is None
    assert plan(meta(1, 20), meta(20, 64)) is None  # too short for terms
    assert plan(meta(1, 20), meta(20, 64), "tf32") is not None
    assert plan(meta(1, 64), meta(1, 64).expand(64, 64)) is None
    assert plan(meta(1, 64), meta(64, 0)) is None
    assert plan(meta(1, 64, dtype=torch.float16), meta(64, 64, dtype=torch.float16)) is None
    for gpu, device in KNOWN_GPUS.items():
        assert (plan(meta(1, 64), meta(64, 64), gpu=gpu) is None) == (device.capability != (9, 0))


@pytest.mark.parametrize("accuracy", ["fp32", "tf32"])
@pytest.mark.parametrize("layout", ["n", "t"])
def test_splits_of_one_operand_do_not_spill(accuracy: Accuracy, layout: str) -> None:
    for tensor in (laid_out(300, 200, layout=layout), laid_out(3, 300, 6000, layout=layout)):
        (launch,) = packed_alone(tensor, first=True, accuracy=accuracy).launches
        assert_nothing_spills(launch)
        found = instructions(launch.kernel)
        assert total(found, r"PREEXIT") == total(found, r"ACQBULK") == 1


def test_the_cpu_multiplies_the_tensor() -> None:
    a, b = torch.randn(5, 3, 8), torch.randn(8, 4)
    packed = tilesmith.pack(b)
    assert torch.equal(tilesmith.matmul(a, packed), torch.matmul(a, b))
    first = tilesmith.pack(a, first=True)
    assert torch.equal(tilesmith.matmul(first, b), torch.matmul(a, b))
    assert torch.equal(tilesmith.matmul(first, packed), torch.matmul(a, b))
    out = torch.empty(5, 3, 4)
    assert tilesmith.matmul(a, packed, out=out) is out
    assert torch.equal(out, torch.matmul(a, b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32])
def test_other_types_are_kept_as_they_are(dtype: torch.dtype) -> None:
    a, b = (torch.arange(12).reshape(shape).to(dtype) for shape in ((3, 4), (4, 3)))
    packed = tilesmith.pack(b, accuracy="tf32")
    assert (packed.accuracy, packed.nbytes) == (None, 0)
    assert torch.equal(tilesmith.matmul(a, packed, accuracy="fp32"), torch.matmul(a, b))


def test_meta_tensors_can_be_packed() -> None:
    result = tilesmith.matmul(meta(5, 3, 8), tilesmith.pack(meta(8, 4)))
    assert (result.device.type, result.shape) == ("meta", (5, 3, 4))


def test_a_packed_operand_tells_what_it_is_and_stays_so() -> None:
    b = torch.randn(8, 4)
    packed = tilesmith.pack(b, accuracy="tf32")
    assert (packed.shape, packed.dtype, packed.device) == (b.shape, b.dtype, b.device)
    about = "shape=(8, 4), dtype=torch.float32, device='cpu', first=False, accuracy='tf32', nbytes=0"
    assert repr(packed) == f"Packed({about})"
    with pytest.raises(AttributeError):
        packed.accuracy = "fp32"  # type: ignore[misc]


def test_the_gradient_of_the_other_operand_is_there() -> None:
    b = torch.randn(8, 4)
    for shape in ((3, 8), (2, 3, 8), (8,)):
        a = torch.randn(shape, requires_grad=True)
        (gradient,) = torch.autograd.grad(tilesmith.matmul(a, tilesmith.pack(b)).square().sum(), a)
        (expected,) = torch.autograd.grad(torch.matmul(a, b).square().sum(), a)
        torch.testing.assert_close(gradient, expected)


def test_a_tensor_that_requires_grad_is_not_packed_unless_it_says_so() -> None:
    b = torch.nn.Parameter(torch.randn(8, 4))
    with pytest.raises(RuntimeError, match=r"requires grad: pass tensor.detach\(\)"):
        tilesmith.pack(b)
    for packed in (tilesmith.pack(b.detach()), torch.no_grad()(tilesmith.pack)(b)):
        assert not tilesmith.matmul(torch.randn(3, 8), packed).requires_grad


def test_a_tensor_that_was_changed_is_out_of_date() -> None:
    b = torch.randn(8, 4)
    packed = tilesmith.pack(b)
    b.add_(1)
    with pytest.raises(RuntimeError, match=r"b was changed in place .* pack it again \(b has shape \[8, 4\]"):
        tilesmith.matmul(torch.randn(3, 8), packed)
    tilesmith.matmul(torch.randn(3, 8), tilesmith.pack(b))


def test_inference_tensors_can_be_packed() -> None:
    with torch.inference_mode():
        packed = tilesmith.pack(torch.randn(8, 4))
        assert tilesmith.matmul(torch.randn(3, 8), packed).shape == (3, 4)


def test_the_accuracy_is_that_of_the_packing() -> None:
    a, packed = torch.randn(3, 8), tilesmith.pack(torch.randn(8, 4), accuracy="tf32")
    tilesmith.matmul(a, packed)
    tilesmith.matmul(a, packed, accuracy="tf32")
    with pytest.raises(RuntimeError, match=r"b is packed for accuracy='tf32', and the product asks for 'fp32'"):
        tilesmith.matmul(a, packed, accuracy="fp32")
    with pytest.raises(RuntimeError, match=r"b is packed for accuracy='tf32', and the product asks for 'fp32'"):
        tilesmith.matmul(tilesmith.pack(a, first=True, accuracy="fp32"), packed)
    with pytest.raises(ValueError, match="accuracy must be one of"):
        tilesmith.pack(torch.randn(8, 4), accuracy="best")


def test_each_side_has_its_own_packing() -> None:
    x = torch.randn(8, 8)
    with pytest.raises(RuntimeError, match=r"pack a second operand with tilesmith.pack\(b\)"):
        tilesmith.matmul(x, tilesmith.pack(x, first=True))
    with pytest.raises(RuntimeError, match=r"pack a first operand with tilesmith.pack\(a, first=True\)"):
        tilesmith.matmul(tilesmith.pack(x), x)


def test_what_has_no_product_is_refused_as_ever() -> None:
    packed = tilesmith.pack(torch.randn(8, 4))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        tilesmith.matmul(torch.randn(3, 7), packed)
    with pytest.raises(RuntimeError, match="same device"):
        tilesmith.matmul(meta(3, 8), packed)
    with pytest.raises(RuntimeError, match="dtype"):
        tilesmith.matmul(torch.randn(3, 8, dtype=torch.float64), packed)
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        tilesmith.matmul([[1.0]], packed)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        tilesmith.pack([[1.0]])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="at least 1D"):
        tilesmith.pack(torch.tensor(1.0))


def test_compiled_code_says_that_it_cannot_have_it() -> None:
    packed = tilesmith.pack(torch.randn(8, 4))
    compiled = torch.compile(lambda a: tilesmith.matmul(a, packed), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"packed operand does not work inside of torch\.compile"):
        compiled(torch.randn(3, 8))
    torch._dynamo.reset()
