"""Chains: what stands between products is one kernel where that can be. Here their kernels run one thread after the
other, as C++; steps of torch's are beside them."""

from typing import Any

import pytest
import torch
from chained_models import FILES, OF_IMAGES, OF_ROWS, file_of
from written_modules import H200, on_the_cpu, problem_model

from tilesmith.kernelbench.cuda_text import device_texts
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.recognize import recognize_here
from tilesmith.kernelbench.whole_model import WholeModel
from tilesmith.kernelbench.write import written
from tilesmith.runtime import compiler

TOLERANCES = (5e-5, 2e-4, 5e-3)  # of results, and of gradients of an order


def models(file: ProblemFile) -> tuple[torch.nn.Module, torch.nn.Module, Any, WholeModel]:
    """The model as it is written and as it was, with the same parameters; the extension; what is known of it."""
    found = recognize_here(file)
    assert isinstance(found, WholeModel)
    names, host = on_the_cpu(written(file, found, H200, "fp32"), (9, 0), chains=found.chains)
    made = []
    for create in (names["ModelNew"], lambda: problem_model(file)):
        torch.manual_seed(1)
        made.append(create())
    return made[0], made[1], host, found


def outcome(model: torch.nn.Module, given: list[torch.Tensor], order: int) -> Any:
    """Results of a model, and gradients up to an order."""
    torch.manual_seed(2)
    inputs = [x.clone().requires_grad_() for x in given] if order else given
    with torch.set_grad_enabled(order > 0):
        results = model(*inputs)
    if order == 0:
        return results
    sources = [*inputs, *model.parameters()]
    total = torch.stack([x.square().sum() for x in results]).sum()
    first = torch.autograd.grad(total, sources, create_graph=order > 1, allow_unused=True)
    if order == 1:
        return [*results, *first]
    again = torch.stack([x.square().sum() for x in first if x is not None]).sum()
    return [*results, *first, *torch.autograd.grad(again, sources, allow_unused=True)]


@pytest.mark.parametrize("kind", FILES)
def test_chains_compute_what_their_steps_do(kind: str) -> None:
    """With gradients of two orders, by four elements and by one, for other sizes; the steps do other tensors."""
    ours, theirs, host, found = models(FILES[kind])
    count = len(OF_ROWS) if kind == "rows" else len(OF_IMAGES)
    assert len(found.chains) >= count
    arguments = {"rows": (8,), "images": (8, 4, 6)}[kind]
    others = {"rows": (8,), "images": (8, 3, 6)}[kind]
    shapes = [(12, *arguments), (5, *others), (1, *arguments)]
    for shape in shapes:
        given = [torch.rand(shape) + 0.5, torch.rand(shape)]
        given += [torch.randn(shape[0], 1)] if kind == "rows" else []
        for order in (0, 1, 2):
            before = len(host.chain_calls())
            found_now, expected = outcome(ours, given, order), outcome(theirs, given, order)
            torch.testing.assert_close(found_now, expected, rtol=TOLERANCES[order], atol=TOLERANCES[order])
            assert len(host.chain_calls()) - before >= count
    assert {by_four for _, by_four in host.chain_calls()} == {True, False}

    given = [torch.randn(12, *arguments).abs() + 0.1 for _ in range(2)]
    given += [torch.randn(12, 1)] if kind == "rows" else []
    before = len(host.chain_calls())
    turned = [given[0].transpose(0, 1).contiguous().transpose(0, 1), *given[1:]]
    torch.testing.assert_close(outcome(ours, turned, 1), outcome(theirs, turned, 1), rtol=1e-4, atol=1e-5)
    assert len(host.chain_calls()) - before < count  # those of x are the steps


def test_not_a_number_and_infinities_come_out_as_torchs() -> None:
    ours, theirs, host, _ = models(FILES["rows"])
    for special in (torch.nan, torch.inf, -torch.inf):
        x = torch.rand(12, 8) + 0.1
        x[3, 2] = special
        x[5] = special
        given = [x, torch.rand(12, 8), torch.rand(12, 1)]
        found = outcome(ours, given, 0)
        expected = outcome(theirs.double(), [x.double() for x in given], 0)  # in float32, gelu on a CPU has others
        torch.testing.assert_close(found, tuple(x.float() for x in expected), equal_nan=True, rtol=1e-4, atol=1e-5)
    assert host.chain_calls()


def test_what_is_needed_elsewhere_or_changed_in_place_is_no_part_of_a_chain() -> None:
    bodies = ["(a := x * 2) + 1", "a - 3", "(b := x.clone()).relu_()", "b + 1", "torch.max(x * 2, 1)[1]"]
    ours, theirs, host, found = models(file_of(bodies, "torch.randn(4, 8), torch.randn(4, 8)"))
    given = [torch.randn(4, 8), torch.randn(4, 8)]
    torch.testing.assert_close(outcome(ours, given, 0), outcome(theirs, given, 0))
    assert not found.chains
    assert host.chain_calls() == []


def test_tied_parameters_have_one_gradient_each_way() -> None:
    """Two operands that are the same tensor."""
    file = file_of(["torch.sigmoid(x * v) + v * self.v"], "torch.randn(4, 8), torch.randn(4, 8)")
    ours, theirs, host, _ = models(file)
    given = [torch.randn(4, 8), torch.randn(4, 8)]
    torch.testing.assert_close(outcome(ours, given, 2), outcome(theirs, given, 2))
    assert host.chain_calls()
    ours, theirs, _, _ = models(file_of(["torch.sigmoid(x * y) + y"], "torch.randn(4, 8), torch.randn(4, 8)"))
    same = given[0].clone().requires_grad_()
    gradients = [torch.autograd.grad(model(same, same)[0].sum(), same)[0] for model in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_rows_that_are_all_but_constant_are_normalized_as_exactly_as_by_torch() -> None:
    bodies = ["F.layer_norm(x + y, (8,), v, v)", "F.group_norm(x - y, 2) * 2"]
    ours, theirs, host, _ = models(file_of(bodies, "torch.randn(4, 8), torch.randn(4, 8)"))
    given = [torch.linspace(0.1, 9, 12)[:, None].expand(12, 8).contiguous(), torch.zeros(12, 8)]
    given[0][5, 3] += 1e-3
    exact = outcome(theirs.double(), [x.double() for x in given], 0)
    torch.testing.assert_close(outcome(ours, given, 0), tuple(x.float() for x in exact), rtol=1e-4, atol=1e-6)
    assert len(host.chain_calls()) == 2


def test_kernels_compile_without_a_gpu() -> None:
    """By NVRTC, for the oldest GPU and for Hopper."""
    bodies = ["torch.softmax(F.gelu(x), 1)", "F.group_norm(x, 4, v, v) + y", "F.mish(x.amin(1) * self.number)"]
    found = recognize_here(file_of(bodies, "torch.randn(12, 8), torch.randn(12, 8)"))
    assert isinstance(found, WholeModel) and len(found.chains) == 3
    texts = device_texts([], found.chains, H200, multiplies=False)
    assert [arch for arch, _ in texts] == ["sm_75", "sm_90a"]
    for arch, text in texts:
        assert compiler.compile(text, arch)
