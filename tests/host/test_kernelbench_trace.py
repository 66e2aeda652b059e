"""Tracing: every spelling becomes the expected expression, which computes what the model computes."""

import json
from random import Random
from typing import Any

import pytest
import torch

from tilesmith.kernelbench.expression import (
    Added,
    Attribute,
    Expression,
    Input,
    Multiplied,
    Product,
    Scalar,
    Scaled,
    Triangle,
    View,
    evaluate,
    from_rows,
    nodes,
    to_rows,
)
from tilesmith.kernelbench.guards import Traced, traced
from tilesmith.kernelbench.loading import UnsupportedError, load
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile
from tilesmith.kernelbench.rules import SUPPORTED
from tilesmith.kernelbench.show import show
from tilesmith.kernelbench.trace import LARGEST, trace

# The elements are small integers, so that every order of summation gives the same floats.
TEXT = """
import math
import torch
import torch.nn.functional as F
from torch import nn

def integers(*shape):
    return torch.randint(-4, 5, shape).float()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {names}):
        {body}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


def problem(body: str, init: str = "pass", /, **inputs: tuple[int, ...] | float) -> ProblemFile:
    """A model with this forward; a tuple is the shape of a tensor."""
    values = [f"integers{shape}" if isinstance(shape, tuple) else repr(shape) for shape in inputs.values()]
    body = body if "return" in body else f"return {body}"
    return ProblemFile("p.py", TEXT.format(init=init, names=", ".join(inputs), body=body, inputs=", ".join(values)))


def check(file: ProblemFile, expected: str) -> None:
    """The expression is the expected one, crosses JSON, and gives what forward gives on real tensors."""
    found = trace(file)
    assert show(found) == expected
    assert traced(file) == Traced(found, found)
    assert from_rows(json.loads(json.dumps(to_rows(found)))) == found
    space: dict[str, Any] = {}
    exec(file.text.replace("cuda", "cpu"), space)
    inputs, model = space["get_inputs"](), space["Model"]()
    attributes = dict(model.named_parameters()) | dict(model.named_buffers())
    for tensor in attributes.values():
        tensor.data = space["integers"](*tensor.shape)
    trained = [x.requires_grad_() for x in [*inputs, *model.parameters()] if isinstance(x, torch.Tensor)]
    result, value = model(*inputs), evaluate(found, inputs, attributes)
    assert (found.shape, found.dtype) == (tuple(result.shape), result.dtype)
    assert value.dtype == result.dtype and torch.equal(value, result)
    assert value.requires_grad == result.requires_grad
    if value.requires_grad:
        gradients = [torch.autograd.grad(x.sum(), trained, materialize_grads=True) for x in (result, value)]
        assert all(torch.equal(x, y) for x, y in zip(*gradients, strict=True))


MATRICES: dict[str, tuple[int, ...]] = {"A": (5, 7), "B": (7, 3)}
SQUARES: dict[str, tuple[int, ...]] = {"A": (4, 4), "B": (4, 4)}


@pytest.mark.parametrize(
    "body",
    [
        "torch.matmul(A, B)",
        "A @ B",
        "A.matmul(B)",
        "torch.mm(A, B)",
        "A.mm(B)",
        "torch.linalg.matmul(A, B)",
        "torch.linalg.multi_dot([A, B])",
        "torch.tensordot(A, B, dims=1)",
        "torch.einsum('ik,kj->ij', A, B)",
        "torch.einsum('ik,kj', A, B)",
        "torch.inner(A, B.T)",
        "F.linear(A, B.T)",
        "(B.T @ A.T).T",
        "torch.bmm(A[None], B[None]).squeeze(0)",
        "torch.bmm(A.unsqueeze(0), B.unsqueeze(0))[:, :].squeeze()",
        "A.contiguous() @ B.clone()",
        "torch.matmul(A.cuda(), B.to('cuda', torch.float32))",
        "A.T.T @ B.transpose(0, 1).permute(1, 0)",
        "A.reshape(7, 5).view(5, 7) @ B.flatten().unflatten(0, (7, 3))",
        "A.double().float() @ B if False else A @ B",
        "C = A @ B; return C.view_as(C)",
    ],
)
def test_spellings_of_one_product(body: str) -> None:
    check(problem(body, **MATRICES), "A @ B")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *(((2, 5, 7), (7, 3)), ((5, 7), (2, 7, 3)), ((2, 3, 5, 7), (7, 4)), ((2, 3, 5, 7), (2, 3, 7, 4))),
        *(((2, 1, 5, 7), (3, 7, 4)), ((2, 1, 5, 7), (1, 3, 7, 4)), ((1, 5, 7), (1, 7, 3)), ((5, 7), (7,))),
        *(((7,), (7, 3)), ((7,), (7,)), ((2, 5, 7), (7,)), ((1, 7), (7, 1)), ((5, 1), (1, 3))),
    ],
)
def test_batches_and_vectors_stay_one_product_without_copies(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(problem("A @ B", A=a, B=b), "A @ B")


@pytest.mark.parametrize(
    ("equation", "a", "b", "expected"),
    [
        ("ik,jk->ij", (5, 7), (3, 7), "A @ B.T"),
        ("ki,kj->ij", (7, 5), (7, 3), "A.T @ B"),
        ("ik,kj->ji", (5, 7), (7, 3), "B.T @ A.T"),
        ("bik,kj->bij", (2, 5, 7), (7, 3), "A @ B"),
        ("ik,bkj->bij", (5, 7), (2, 7, 3), "A @ B"),
        ("bik,bkj->bij", (2, 5, 7), (2, 7, 3), "A @ B"),
        ("bijl,lk->bijk", (2, 3, 4, 5), (5, 6), "A @ B"),
        ("...ik,kj->...ij", (2, 2, 5, 7), (7, 3), "A @ B"),
        ("bhik,bhjk->bhij", (2, 3, 5, 7), (2, 3, 4, 7), "A @ B.mT"),
        ("bqnd,bknd->bnqk", (2, 5, 3, 7), (2, 4, 3, 7), "A.permute(0, 2, 1, 3) @ B.permute(0, 2, 3, 1)"),
        ("abij,ijk->abk", (2, 3, 4, 5), (4, 5, 6), "A.reshape(2, 3, 20) @ B.reshape(20, 6)"),
        ("ij,j->i", (5, 7), (7,), "A @ B"),
        ("i,ij->ij", (5,), (5, 7), "A.unsqueeze(1) * B"),
        ("i,j->ij", (5,), (7,), "A.unsqueeze(1) * B.unsqueeze(0)"),
    ],
)
def test_einsums(equation: str, a: tuple[int, ...], b: tuple[int, ...], expected: str) -> None:
    check(problem(f"torch.einsum('{equation}', A, B)", A=a, B=b), expected)


@pytest.mark.parametrize(
    ("body", "inputs", "expected"),
    [
        ("A.T @ B", {"A": (7, 5), "B": (7, 3)}, "A.T @ B"),
        ("A @ B.mT", {"A": (5, 7), "B": (3, 7)}, "A @ B.T"),
        ("A.t() @ B.swapaxes(0, 1)", {"A": (7, 5), "B": (3, 7)}, "A.T @ B.T"),
        ("A.mT @ B.transpose(-1, -2)", {"A": (2, 7, 5), "B": (2, 4, 7)}, "A.mT @ B.mT"),
        ("A.permute(0, 2, 1) @ B", {"A": (2, 7, 5), "B": (7, 3)}, "A.mT @ B"),
        ("torch.bmm(A.movedim(1, 2), B)", {"A": (2, 7, 5), "B": (2, 7, 3)}, "A.mT @ B"),
        ("A.view(10, 7) @ B", {"A": (2, 5, 7), "B": (7, 3)}, "A.reshape(10, 7) @ B"),
        ("(A @ B).flatten()", MATRICES, "(A @ B).reshape(15)"),
        ("(A @ B).view(2, 2, 4)", SQUARES, "(A @ B).reshape(2, 2, 4)"),
        ("A.expand(2, 5, 7)", {"A": (5, 7)}, "A.expand(2, 5, 7)"),
        ("A.expand(5, 7) @ B", {"A": (5, 1), "B": (7, 3)}, "A.expand(5, 7) @ B"),
        ("A @ B.expand(7, 3)", {"A": (5, 7), "B": (1, 3)}, "A @ B.expand(7, 3)"),
        ("(A @ B) @ A", SQUARES, "(A @ B) @ A"),
        ("A @ B", {"A": (3,), "B": (2, 3, 7)}, "B.mT @ A"),
        ("A * s", {"A": (5, 7), "s": 3.5}, "A * s"),
        ("s * A", {"A": (5, 7), "s": 3}, "A * s"),
        ("torch.mul(A, 2.5)", {"A": (5, 7)}, "A * 2.5"),
        ("A.mul(B)", SQUARES, "A * B"),
        ("A @ B * s", {**MATRICES, "s": 2.0}, "(A @ B) * s"),
        ("t * (A @ B) * s", {**MATRICES, "s": 2.0, "t": 2.0}, "((A @ B) * t) * s"),
        ("(2.0 * A).view(2, 8) * s", {"A": (4, 4), "s": 2.0}, "(A * 2.0).reshape(2, 8) * s"),
        ("-(A @ B) / 4", MATRICES, "((A @ B) * -1) * 0.25"),
        ("A.unsqueeze(1) * B", {"A": (5,), "B": (5, 7)}, "A.unsqueeze(1) * B"),
        ("A[:, None] * B", {"A": (5,), "B": (5, 7)}, "A.unsqueeze(1) * B"),
        ("torch.diag(A) @ B", {"A": (5,), "B": (5, 7)}, "A.unsqueeze(1) * B"),
        ("A @ B.diag()", {"A": (5, 7), "B": (7,)}, "A * B"),
        ("torch.outer(A, B)", {"A": (5,), "B": (7,)}, "A.unsqueeze(1) * B"),
        ("torch.triu(A @ B)", SQUARES, "triu(A @ B)"),
        ("(A @ B).tril(-1)", SQUARES, "tril(A @ B, -1)"),
        ("A @ B + C", {**MATRICES, "C": (3,)}, "A @ B + C"),
        ("A @ B - C", {**MATRICES, "C": (5, 1)}, "A @ B + C * -1"),
        ("C + (A + B)", {**SQUARES, "C": (4,)}, "C + (A + B)"),
        ("torch.add(A, B, alpha=s)", {**SQUARES, "s": 2.0}, "A + B * s"),
        ("torch.addmm(C, A, B)", {**MATRICES, "C": (3,)}, "A @ B + C"),
        ("torch.addmm(C, A, B, beta=0.5, alpha=2)", {**MATRICES, "C": (3,)}, "(A @ B) * 2 + C * 0.5"),
        ("C.addmm(A, B, beta=0)", {**MATRICES, "C": (3,)}, "A @ B"),
        ("torch.addmv(C, A, B)", {"A": (5, 7), "B": (7,), "C": (5,)}, "A @ B + C"),
        ("torch.baddbmm(C, A, B)", {"A": (2, 5, 7), "B": (2, 7, 3), "C": (2, 1, 3)}, "A @ B + C"),
        ("F.linear(A, B, C)", {"A": (2, 5, 7), "B": (3, 7), "C": (3,)}, "A @ B.T + C"),
        ("C = A @ B; C += D; C.mul_(2); return C", {**MATRICES, "D": (3,)}, "(A @ B + D) * 2"),
        ("C = A @ B; C += D; return C", {"A": (2, 5, 7), "B": (7, 3), "D": (3,)}, "A @ B + D"),
        ("C = A.clone(); C.triu_(); return C", SQUARES, "triu(A)"),
        ("C = A.clone(); C.unsqueeze_(0); return C", SQUARES, "A.unsqueeze(0)"),
    ],
)
def test_spellings(body: str, inputs: dict[str, Any], expected: str) -> None:
    check(problem(body, **inputs), expected)


@pytest.mark.parametrize(
    ("init", "body", "expected"),
    [
        ("self.layer = nn.Linear(7, 3)", "self.layer(A)", "A @ self.layer.weight.T + self.layer.bias"),
        ("self.layer = nn.Linear(7, 3, bias=False)", "self.layer(A)", "A @ self.layer.weight.T"),
        ("self.w = nn.Parameter(torch.rand(7, 3, device='cuda'))", "A @ self.w.data", "A @ self.w.detach()"),
        ("self.register_buffer('w', torch.rand(7, 3).cuda())", "A @ self.w", "A @ self.w"),
        ("self.s = nn.Parameter(torch.tensor(2.0))", "A * self.s", "A * self.s"),
        (
            "self.layers = nn.Sequential(nn.Linear(7, 4), nn.Linear(4, 3, bias=False))",
            "self.layers(A)",
            "(A @ self.layers.0.weight.T + self.layers.0.bias) @ self.layers.1.weight.T",
        ),
    ],
)
@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7), (2, 3, 5, 7)])
def test_parameters_of_the_model(init: str, body: str, expected: str, shape: tuple[int, ...]) -> None:
    check(problem(body, init, A=shape), expected)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("A.contiguous() @ B.clone().detach()", "A @ B.detach()"),
        ("A.detach().detach() @ B.T.detach().T", "A.detach() @ B.detach()"),
        ("(A.detach() @ B).detach() + A", "(A @ B).detach() + A"),
        ("C = A @ B; return C + C.clone().detach()", "t1 + t1.detach() where t1 = A @ B"),
        ("C = A @ B; return C * C.data", "t1 * t1.detach() where t1 = A @ B"),
        ("(A.T.detach() @ B).view(2, 8)", "(A.detach().T @ B).reshape(2, 8)"),
        ("A[None].detach().expand(3, 4, 4) @ B", "A.detach().unsqueeze(0).expand(3, 4, 4) @ B"),
        ("with torch.inference_mode(): return A @ B", "(A @ B).detach()"),
        ("with torch.no_grad(): return A @ B", "(A @ B).detach()"),
        ("with torch.no_grad(): C = (A @ B).mul_(2)\n        return C + A", "(A @ B).detach() * 2 + A"),
        (
            "torch.set_grad_enabled(False); C = A @ B; torch.set_grad_enabled(True); return C @ A",
            "(A @ B).detach() @ A",
        ),
        (
            "with torch.no_grad():\n          C = A * 2\n          with torch.enable_grad(): return C + B",
            "(A * 2).detach() + B",
        ),
        ("C = A.detach().clone(); C += B; return C", "A.detach() + B"),
        ("C = A.detach(); D = A * 2; return C @ D", "A.detach() @ (A * 2)"),
        ("torch.triu(A @ B).detach() + A", "triu(A @ B).detach() + A"),
    ],
)
def test_where_no_gradient_flows_the_expression_says_so(body: str, expected: str) -> None:
    check(problem(body, **SQUARES), expected)


@pytest.mark.parametrize(
    ("init", "body", "expected"),
    [
        ("self.register_buffer('w', torch.rand(7, 3))", "A @ self.w.detach()", "A @ self.w"),
        ("self.w = nn.Parameter(torch.rand(7, 3), requires_grad=False)", "A @ self.w", "A @ self.w"),
        # Who trains the parameter later after all gets the gradients of the model.
        ("self.w = nn.Parameter(torch.rand(7, 3), requires_grad=False)", "A @ self.w.data", "A @ self.w.detach()"),
        (
            "self.layer = nn.Linear(7, 3)",
            "x = self.layer(A); original = x.clone().detach(); return x * 0.5 + original",
            "t1 * 0.5 + t1.detach() where t1 = A @ self.layer.weight.T + self.layer.bias",
        ),
        (
            "self.layer = nn.Linear(7, 3)",
            "with torch.no_grad(): return self.layer(A)",
            "(A @ self.layer.weight.T + self.layer.bias).detach()",
        ),
    ],
)
@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7)])
def test_parameters_may_be_detached(init: str, body: str, expected: str, shape: tuple[int, ...]) -> None:
    file = problem(body, init, A=shape)
    check(file, expected)
    loaded = load(file)
    flags = [x.requires_grad for x in loaded.model.parameters()]
    trace(file, loaded)
    assert [x.requires_grad for x in loaded.model.parameters()] == flags


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("C = A @ B; C.detach_(); return C", "Tensor.detach_"),
        ("C = A @ B; C.requires_grad_(False); return C", "Tensor.requires_grad_"),
        ("C = A.detach(); C.requires_grad = True; return C", "an assignment to requires_grad"),
        ("C = A @ B; C.data = A; return C", "an assignment to data"),
        ("C = A @ B; C.register_hook(lambda g: 2 * g); return C", "Tensor.register_hook"),
        ("torch.autograd.grad((A @ B).sum(), A)[0]", "aten.sum"),
        ("Twice.apply(A @ B)", "torch.autograd.Function, which has a gradient of its own,"),
        ("C = A @ B; torch.set_grad_enabled(False); C.mul_(2); return C", "aten.mul_, which changes a tensor without"),
        ("C = A @ B; C.data.mul_(2); return C", "p.py: forward returns the result of a tensor that was changed"),
    ],
)
def test_what_else_changes_gradients_is_refused_by_name(body: str, what: str) -> None:
    text = problem(body, **SQUARES).text
    twice = "import torch\nclass Twice(torch.autograd.Function):\n    def forward(ctx, x): return x * 1\n"
    with pytest.raises(UnsupportedError) as caught:
        trace(ProblemFile("p.py", twice + text if "Twice" in body else text))
    assert str(caught.value).startswith(what)
    assert torch.is_grad_enabled()


def shuffled(random: Random, name: str, shape: list[int]) -> tuple[list[str], list[int]]:
    """A few lines that only move elements around, and the shape after them."""
    lines: list[str] = []
    for step in random.sample(["permute", "unsqueeze", "merge", "expand", "scale"], random.randrange(4)):
        place = random.randrange(len(shape))
        if step == "permute":
            order = random.sample(range(len(shape)), len(shape))
            lines, shape = [*lines, f"{name} = {name}.permute({order})"], [shape[i] for i in order]
        elif step == "unsqueeze":
            lines, shape = [*lines, f"{name} = {name}.unsqueeze({place})"], [*shape[:place], 1, *shape[place:]]
        elif step == "merge" and place:
            shape = [*shape[: place - 1], shape[place - 1] * shape[place], *shape[place + 1 :]]
            lines = [*lines, f"{name} = {name}.reshape({shape})"]
        elif step == "expand":
            lines, shape = [*lines, f"{name} = {name}.expand(2, *{shape})"], [2, *shape]
        else:
            lines = [*lines, f"{name} = {name} * 2"]
    return lines, shape


@pytest.mark.parametrize("seed", range(60))
def test_simplifying_keeps_the_value(seed: int) -> None:
    """Random views around a random contraction; sizes of one are frequent, because rules treat them apart."""
    random = Random(seed)
    first = [random.choice([1, 2, 3]) for _ in range(random.randrange(1, 4))]
    before, shape = shuffled(random, "A", first)
    sizes = dict(zip("abcdefg", shape, strict=False))
    shared = random.sample(sorted(sizes), random.randrange(len(sizes) + 1))
    sizes |= {"x": random.choice([1, 2, 3])}
    second = random.sample([*shared, "x"], len(shared) + 1)
    kept = [label for label in sizes if label not in shared or random.random() < 0.4]
    random.shuffle(kept)
    equation = f"{''.join(sorted(sizes)[: len(shape)])},{''.join(second)}->{''.join(kept)}"
    after, _ = shuffled(random, "C", [sizes[label] for label in kept])
    lines = [*before, f"C = torch.einsum('{equation}', A, B)", *after, "return C"]
    file = problem("; ".join(lines), A=tuple(first), B=tuple(sizes[label] for label in second))
    check(file, show(trace(file)))


def test_further_arguments_have_names_with_numbers() -> None:
    file = problem("B[0] @ A * B[1]", A=(7, 3), B=(5, 7), C=2.0)
    text = file.text.replace("self, A, B, C", "self, A, *B")
    assert text != file.text
    check(ProblemFile("p.py", text), "(B_0 @ A) * B_1")


def test_an_argument_given_twice_stays_two_arguments() -> None:
    file = problem("A @ B", **SQUARES)
    text = file.text.replace("return [integers(4, 4), integers(4, 4)]", "a = integers(4, 4); return [a, a]")
    assert text != file.text
    assert show(trace(ProblemFile("p.py", text))) == "A @ B"


def test_a_constant_is_told_from_an_argument_of_the_same_value() -> None:
    found = trace(problem("(A * s) * 2.5", A=(4, 4), s=2.5))
    assert isinstance(found, Scaled) and isinstance(found.x, Scaled)
    assert (found.factor, found.x.factor) == (Scalar(2.5), Scalar(2.5, "s", 1))


DIVISOR = "aten.div by something other than a power of two"


@pytest.mark.parametrize(
    ("body", "inputs", "what"),
    [
        ("torch.softmax(A @ B, -1)", MATRICES, "aten._softmax"),
        ("F.relu(A @ B)", MATRICES, "aten.relu"),
        ("A[0] @ B", MATRICES, "aten.select"),
        ("A[:3] @ B", MATRICES, "aten.slice"),
        ("A + 1", MATRICES, "aten.add of a number"),
        ("A - 1", MATRICES, "aten.sub of a number"),
        ("A / 3", MATRICES, DIVISOR),
        ("A / B", SQUARES, DIVISOR),
        ("A.half()", MATRICES, "aten._to_copy to torch.float16"),
        ("A + torch.ones(7)", MATRICES, "aten.ones, which makes a tensor,"),
        ("A @ torch.eye(7)", MATRICES, "aten.eye, which makes a tensor,"),
        ("torch.cat([A, A])", MATRICES, "aten.cat"),
        ("A.relu_()", MATRICES, "aten.relu_, which changes a tensor in place,"),
        ("A.mul_(2)", MATRICES, "aten.mul_, which changes A in place,"),
        ("A.T.mul_(2)", MATRICES, "aten.mul_, which changes A in place,"),
        ("A.unsqueeze_(0)", MATRICES, "aten.unsqueeze_, which changes A in place,"),
        ("torch.mm(A, B, out=A)", SQUARES, "mm with out=, which changes a tensor in place,"),
        (
            "with torch.autocast('cpu', torch.bfloat16): return A @ B",
            MATRICES,
            "torch.autocast, which changes types on some devices only,",
        ),
        (
            "A if (A @ B).item() > 0 else B",
            {"A": (1, 7), "B": (7, 1)},
            "aten._local_scalar_dense, which reads an element of a tensor,",
        ),
        (
            "A if s > 1 else A * s",
            {"A": (4, 4), "s": 2},
            "a number among the arguments that decides what forward computes",
        ),
    ],
)
def test_what_has_no_expression_is_refused_by_name_and_line(body: str, inputs: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        trace(problem(body, **inputs))
    line = body if "return" in body else f"return {body}"
    assert str(caught.value) == f"{what} is not supported at p.py:16: {line}. {SUPPORTED}"


OTHER_NAME = "a tensor that was changed in place under another name"


@pytest.mark.parametrize(
    ("body", "inputs", "message"),
    [
        (
            "C = A @ B; D = C.T; C.mul_(2); return D",
            MATRICES,
            f"p.py: forward returns the result of {OTHER_NAME} is not supported. {SUPPORTED}",
        ),
        (
            "A.tolist()",
            MATRICES,
            "forward fails without data: NotImplementedError: Cannot copy out of meta tensor; no data! "
            "at p.py:16: return A.tolist()",
        ),
        (
            "torch.diag(A)",
            {"A": (5,)},
            "p.py: forward returns the result of torch.diag outside of a product of two matrices is not supported"
            f". {SUPPORTED}",
        ),
        ("A @ B, A", MATRICES, "p.py: forward returns 2 values in a tuple; supported is one tensor"),
        ("None", MATRICES, "p.py: forward returns a NoneType; supported is one tensor"),
        ("A * (s * 2)", {"A": (4, 4), "s": 2.5}, "p.py: forward uses s for more than a factor"),
        ("A * math.sqrt(s)", {"A": (4, 4), "s": 2.5}, "p.py: forward uses s for more than a factor"),
        (
            "A.view(s, -1)",
            {"A": (4, 4), "s": 2},
            "forward fails with another value of s: RuntimeError: shape '[3000009, -1]' is invalid for input "
            "of size 16 at p.py:16: return A.view(s, -1)",
        ),
    ],
)
def test_what_else_is_no_expression_says_why(body: str, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        trace(problem(body, **inputs))
    assert str(caught.value) == message


def test_a_tensor_that_is_neither_argument_nor_parameter_is_refused() -> None:
    with pytest.raises(
        UnsupportedError, match=r"a tensor that is no argument .* is not supported at p.py:16: return A @ self.w"
    ):
        trace(problem("A @ self.w", "self.w = torch.rand(7, 3)", A=(5, 7)))


def test_equal_nodes_are_one() -> None:
    a, b = matrix("A", 0, 4, 4), matrix("B", 1, 4, 4)
    assert Product(a, b) is Product(a, b) is not Product(b, a)
    assert Scaled(a, Scalar(2)) is not Scaled(a, Scalar(2.0))
    assert Scalar(0.0) is not Scalar(-0.0)


def test_a_value_that_is_used_twice_counts_once() -> None:
    found = trace(problem("for _ in range(100): A = A + A\n        return A * 0.5", A=(4, 4)))
    assert len(nodes(found)) == 103
    assert from_rows(json.loads(json.dumps(to_rows(found)))) is found
    assert torch.equal(evaluate(found, [torch.ones(4, 4)]), torch.full((4, 4), 2.0**99))
    assert show(found).startswith("(t99 + t99) * 0.5 where t1 = A + A, t2 = t1 + t1,")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("C = A @ B; return C + C", "t1 + t1 where t1 = A @ B"),
        ("C = (A @ B).flatten(); return C * C", "t1 * t1 where t1 = (A @ B).reshape(16)"),
        ("return (A @ B).T + A @ B", "t1.T + t1 where t1 = A @ B"),
        ("C = A.T; return C @ C", "A.T @ A.T"),
        ("C = A @ B; return C.triu() + C", "triu(t1) + t1 where t1 = A @ B"),
    ],
)
def test_what_is_used_twice_has_a_name(body: str, expected: str) -> None:
    check(problem(body, **SQUARES), expected)


def test_names_of_values_are_none_of_the_arguments() -> None:
    check(problem("C = t1 @ t1; return C + C", t1=(4, 4)), "t2 + t2 where t2 = t1 @ t1")


def test_an_expression_that_doubles_with_every_line_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"aten.add, after too many operations, is not supported at p.py:16"):
        trace(problem(f"for _ in range({LARGEST}): A = A + A\n        return A", A=(4, 4)))


def test_the_user_sees_the_line_of_an_error_in_forward() -> None:
    with pytest.raises(ProblemError, match=r"^forward fails: RuntimeError: .* at p.py:16: return A @ B$"):
        trace(problem("A @ B", A=(5, 7), B=(5, 7)))


def matrix(name: str, index: int, *shape: int, dtype: torch.dtype = torch.float32) -> Input:
    return Input(name, index, shape, dtype, torch.empty(shape, device="meta").stride())


def test_every_node_crosses_json() -> None:
    a, b = matrix("A", 0, 4, 4, dtype=torch.bfloat16), matrix("B", 1, 2, 4, 4, dtype=torch.bfloat16)
    weight = Attribute("layers.0.weight", (4,), torch.bfloat16)
    product = Product(View(a, "permute", (1, 0)), View(View(b, "reshape", (2, 4, 4)), "expand", (2, 4, 4)))
    whole = Triangle(Added(Scaled(product, Scalar(2.5, "s", 2)), Multiplied(weight, a)), upper=False, diagonal=-2)
    assert from_rows(json.loads(json.dumps(to_rows(whole)))) == whole
    assert (whole.shape, whole.dtype) == ((2, 4, 4), torch.bfloat16)
    about = {"name": "A", "index": 0, "shape": [4, 4], "dtype": "bfloat16", "strides": [4, 1]}
    assert to_rows(a) == [{"node": "Input", **about}]


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (Scaled(matrix("A", 0, 4, dtype=torch.int32), Scalar(2)), torch.int32),
        (Scaled(matrix("A", 0, 4, dtype=torch.int32), Scalar(2.0)), torch.float32),
        (Scaled(matrix("A", 0, 4, dtype=torch.float16), Scalar(2.0)), torch.float16),
        (Added(matrix("A", 0, 4, dtype=torch.float16), matrix("B", 1, 4)), torch.float32),
        (Multiplied(matrix("A", 0, 4, dtype=torch.float16), matrix("B", 1)), torch.float16),
        (Scalar(1), torch.int64),
        (Scalar(1.0), torch.float64),
    ],
)
def test_types_are_promoted_as_torch_does(x: Expression, dtype: torch.dtype) -> None:
    assert x.dtype == dtype


def test_an_expression_has_its_arguments_checked() -> None:
    with pytest.raises(TypeError, match="argument A must be a tensor, not 3"):
        evaluate(matrix("A", 0, 4), [3])
