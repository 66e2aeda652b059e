"""Written modules: that they are the Python they have to be, and compute what the problem does."""

import ast
import json
import re
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from written_modules import ACTIVATIONS, H200, executed, on_the_cpu, problem_model

from tilesmith.core.device import named
from tilesmith.kernelbench.cuda_text import planned_text
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile, shipped
from tilesmith.kernelbench.products import MAX_PLANS, ProductSpec, plans_of
from tilesmith.kernelbench.recognize import recognize_here
from tilesmith.kernelbench.write import module_text, plan_of, written

pytestmark = pytest.mark.xdist_group("written_modules")
PROBLEMS = {problem.name: problem for problem in shipped()}

SMALL = """
import torch
import torch.nn as nn
import torch.nn.functional
from math import sqrt as root

SIZE = 6
WIDTH = SIZE // 2

def scale(n: int) -> float:
    return 1 / root(n)

class Model(nn.Module):
    \"\"\"Several things at once.\"\"\"

    def __init__(self, extra: int = 0):
        super(Model, self).__init__()
        self.weight = nn.Parameter(torch.randn(SIZE, WIDTH + extra) * scale(SIZE))
        self.linear = torch.nn.Linear(WIDTH + extra, 5)

    def forward(self, x):
        return self.linear(x @ self.weight)

def get_inputs():
    return [torch.rand(4, SIZE)]

def get_init_inputs():
    return [1]
"""


def text_of(problem: ProblemFile, **options: bool) -> str:
    return written(problem, recognize_here(problem), H200, "fp32", **options)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {name: text_of(problem) for name, problem in PROBLEMS.items()}


def test_the_python_is_old_and_has_no_forbidden_words(texts: dict[str, str]) -> None:
    for text in texts.values():
        tree = ast.parse(text, feature_version=(3, 8))
        assert not re.search(r"\btry\s*:|\bexcept\b|\bpass\b", text)
        roots = {
            alias.name.partition(".")[0] if isinstance(node, ast.Import) else str(node.module).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert roots == {"hashlib", "re", "torch"}
        assert not re.search("cublas|cutlass|torch.matmul\\(|torch.mm\\(|torch.bmm\\(", text, re.IGNORECASE)


def test_the_only_public_name_is_the_model(texts: dict[str, str]) -> None:
    for text in texts.values():
        assert [name for name in executed(text) if not name.startswith("_")] == ["ModelNew"]


def test_the_same_problem_gives_the_same_bytes(texts: dict[str, str]) -> None:
    for name in ("06_large_k.py", "08_irregular.py", "14_upper_triangular.py"):
        assert text_of(PROBLEMS[name]) == texts[name]


def test_kernels_share_the_files_that_they_include(texts: dict[str, str]) -> None:
    for text in texts.values():
        files = executed(text)["_FILES"]
        included = re.findall(r'^#include "(.+)"$', text, re.MULTILINE)
        assert set(included) == files.keys()
        assert not any("#include" in file for file in files.values())
        assert all(text.count(file) == 1 for file in files.values())


def test_headers_say_what_the_module_is(texts: dict[str, str]) -> None:
    for name, problem in PROBLEMS.items():
        header = texts[name].partition("\n\n")[0].replace("\n# ", " ")
        plan = plan_of(recognize_here(problem), H200, "fp32")
        assert header.startswith("# ModelNew: ")
        assert (plan is None) == (name in ("05_matrix_scalar.py", "12_diagonal.py"))
        if plan is not None:
            assert f"The plan for {plan.problem} on NVIDIA H200: {plan.name}" in header
            assert "Precision class: float32" in header


def test_tf32_is_written_as_such() -> None:
    problem = PROBLEMS["01_square.py"]
    text = written(problem, recognize_here(problem), H200, "tf32")
    assert "Precision class: TF32" in text.replace("\n# ", " ")


def test_plans_are_for_the_operands_of_the_problem(texts: dict[str, str]) -> None:
    expected = {
        "08_irregular.py": (((8205, 2949), (2949, 1)), ((2949, 5921), (5921, 1))),
        "16_transposed_a.py": (((2048, 8192), (1, 2048)), ((8192, 4096), (4096, 1))),
        "18_transposed_both.py": (((2048, 8192), (1, 2048)), ((8192, 4096), (1, 8192))),
        "03_batched.py": (
            ((128, 512, 1024), (512 * 1024, 1024, 1)),
            ((128, 1024, 2048), (1024 * 2048, 2048, 1)),
        ),
        "05_matrix_scalar.py": (),
    }
    for name, operands in expected.items():
        names = executed(texts[name])
        assert [(row[:2], row[2:4]) for row in names["_PLANS"]] == ([operands] if operands else [])
        assert names["_PLANNED_GPU"] == ((9, 0), 132)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *(((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,))),
        *(((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (6, 4, 5)), ((3, 4), (2, 4, 5))),
        *(((0, 4), (4, 5)), ((3, 0), (0, 5))),
    ],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_and_their_gradients_are_those_of_torch(
    texts: dict[str, str], a: tuple[int, ...], b: tuple[int, ...], transposed: bool
) -> None:
    names, _ = on_the_cpu(texts["08_irregular.py"])

    def tensor(shape: tuple[int, ...]) -> torch.Tensor:
        if transposed and len(shape) > 1:
            return torch.randn(*shape[:-2], shape[-1], shape[-2]).mT
        return torch.randn(shape)

    operands = [tensor(shape) for shape in (a, b)]
    ours = [x.clone().requires_grad_() for x in operands]
    theirs = [x.clone().requires_grad_() for x in operands]
    out, expected = names["ModelNew"]()(*ours), torch.matmul(*theirs)
    torch.testing.assert_close(out, expected)
    gradient = torch.randn(expected.shape)
    out.backward(gradient)
    expected.backward(gradient)
    torch.testing.assert_close([x.grad for x in ours], [y.grad for y in theirs])


def test_gradients_have_gradients(texts: dict[str, str]) -> None:
    names, _ = on_the_cpu(texts["08_irregular.py"])
    # Integers, whose sums are exact in any order: other terms may cancel, and leave roundings.
    a, b = (torch.randint(-3, 4, shape).float().requires_grad_() for shape in ((3, 4), (4, 2)))
    results = []
    for multiply in (names["_matmul"], torch.matmul):
        (first,) = torch.autograd.grad((multiply(a, b) ** 2).sum(), a, create_graph=True)
        results.append(torch.autograd.grad((first**2).sum(), b)[0])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_forward_gradients_are_refused_and_not_dropped(texts: dict[str, str]) -> None:
    names, _ = on_the_cpu(texts["08_irregular.py"])
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, torch.ones_like(a))
        for operands in ((dual, b), (b.T, dual.T)):
            with pytest.raises(RuntimeError, match="jvp"):
                names["_matmul"](*operands)


def test_16_bit_floats_are_multiplied_and_other_types_are_refused(texts: dict[str, str]) -> None:
    names, _ = on_the_cpu(texts["01_square.py"])
    a, b = torch.randn(3, 4).bfloat16(), torch.randn(4, 5).bfloat16()
    torch.testing.assert_close(names["_matmul"](a, b), (a.float() @ b.float()).bfloat16())
    with pytest.raises(TypeError, match="not Double and Double"):
        names["_matmul"](a.double(), b.double())
    with pytest.raises(TypeError, match="one type"):
        names["_matmul"](a, b.float())
    with pytest.raises(RuntimeError, match=re.escape("cannot multiply [3, 4] by [3, 4]")):
        names["_matmul"](a, a)


def test_the_plan_is_used_for_its_operands_alone() -> None:
    problem = ProblemFile("p.py", PROBLEMS["01_square.py"].text.replace("4096", "1024"))
    text = text_of(problem)
    names, host = on_the_cpu(text, (9, 0))
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    out = names["ModelNew"]()(a, b)
    ((plan, x, y, z, workspace, bias),) = host.planned_calls()
    assert (plan, x, y, z, bias) == (0, a.data_ptr(), b.data_ptr(), out.data_ptr(), 0)
    assert workspace != 0
    torch.testing.assert_close(out, a @ b)
    others = [(a.T, b), (a[:-1], b), (torch.randn(1024 * 1024 + 1)[1:].view(1024, 1024), b)]
    for first, second in others:
        torch.testing.assert_close(names["_matmul"](first, second), first @ second, rtol=1e-4, atol=1e-4)
    assert len(host.planned_calls()) == 1
    names, host = on_the_cpu(text, (8, 0))
    torch.testing.assert_close(names["_matmul"](a, b), a @ b, rtol=1e-4, atol=1e-4)
    assert host.planned_calls() == []


def text_with_parts(*products: ProductSpec) -> str:
    """A module with plans for these products, and with all functions that multiply."""
    return module_text(
        what="nothing",
        plans=plans_of(products, H200, "fp32"),
        parts=["product", "einsum", "added", "linear"],
        constructor=("", "_torch.nn.Module", ""),
        forward="def forward(self):\n    return None\n",
        device=H200,
        accuracy="fp32",
    )


def with_parts(*products: ProductSpec) -> tuple[dict[str, Any], Any]:
    """Such a module on the GPU that its plans are for."""
    return on_the_cpu(text_with_parts(*products), (9, 0))


def linear(*sizes: int, **how: Any) -> ProductSpec:
    """x of these sizes but for the last, and a weight with as many rows as the last says."""
    *shape, rows = sizes
    return ProductSpec.linear(torch.empty(shape), torch.empty(rows, shape[-1]), has_bias=True, **how)


def test_a_module_has_the_parts_and_plans_that_it_was_asked_for(texts: dict[str, str]) -> None:
    text = text_with_parts(linear(6, 8, 4, activation="gelu"))
    ast.parse(text, feature_version=(3, 8))
    header = text.partition("\n\n")[0].replace("\n# ", " ")
    assert "The plan for 6 x 8 x 4 float32 with a bias and gelu on NVIDIA H200: " in header
    parts = {f"_{name}" for name in ("linear", "added", "einsum", "triangle", "scaled")}
    assert parts & executed(text).keys() == {"_linear", "_added", "_einsum"}
    assert parts & executed(texts["14_upper_triangular.py"]).keys() == {"_triangle"}


def test_products_survive_json() -> None:
    spec = linear(4, 3, 8, 5, activation="silu")
    assert ProductSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_the_costliest_products_have_plans_and_those_of_the_fallback_have_none() -> None:
    specs = [ProductSpec.of(torch.empty(64, 64), torch.empty(64, 8 * n)) for n in range(1, MAX_PLANS + 3)]
    empty = ProductSpec.of(torch.empty(64, 0), torch.empty(0, 64))
    assert list(plans_of([*specs, *specs, empty], H200, "fp32")) == specs[: -MAX_PLANS - 1 : -1]
    assert plans_of(specs, named("a100"), "fp32") == {}


def test_each_product_of_a_model_has_its_plan() -> None:
    text = PROBLEMS["08_irregular.py"].text.replace("torch.matmul(A, B)", "(A @ B).T @ A @ (B * 2)")
    for old, new in (("8205", "24"), ("2949", "40"), ("5921", "48")):
        text = text.replace(old, new)
    problem = ProblemFile("p.py", text)
    a, b = torch.randn(24, 40), torch.randn(40, 48)
    names, host = on_the_cpu(text_of(problem), (9, 0))
    torch.testing.assert_close(names["ModelNew"]()(a, b), (a @ b).T @ a @ (b * 2))
    assert sorted(number for number, *_ in host.planned_calls()) == [0, 1, 2]


def test_kernels_that_plans_share_are_in_the_text_once() -> None:
    batch = ProductSpec.of(torch.empty(8, 1024, 3072), torch.empty(768, 3072).T, has_bias=True)
    specs = [linear(8192, 768, 2304), linear(8192, 3072, 768), batch]
    plans = plans_of(specs, H200, "fp32")
    (one, two, _) = plans.values()  # of the last two, the batch has the same rows
    assert [x.kernel for x in one.launches] == [x.kernel for x in two.launches]
    text = planned_text(plans.values())
    assert text.count("namespace kernel_") == len({launch.kernel for launch in one.launches})
    assert text.count("static const Launch launches_") == 2


@pytest.mark.parametrize("activation", list(ACTIVATIONS), ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
def test_layers_are_one_call_without_gradients(activation: str | None, has_bias: bool) -> None:
    x, weight, bias = torch.randn(2, 3, 8), torch.randn(4, 8), torch.randn(4) if has_bias else None
    names, host = with_parts(ProductSpec.linear(x, weight, has_bias=has_bias, activation=activation))
    expected = ACTIVATIONS[activation](functional.linear(x, weight, bias))
    torch.testing.assert_close(names["_linear"](x, weight, bias, activation), expected)
    assert [call[-1] for call in host.planned_calls()] == [0 if bias is None else bias.data_ptr()]

    results = []
    for layer in (names["_linear"], lambda *given: ACTIVATIONS[activation](functional.linear(*given[:3]))):
        given = [None if y is None else y.clone().requires_grad_() for y in (x, weight, bias)]
        out = layer(*given, activation)
        out.pow(2).sum().backward()
        results.append([out.detach(), *(y.grad for y in given if y is not None)])
    torch.testing.assert_close(*results)
    # The plan without activation, whose gradients are products.
    assert len(host.planned_calls()) == 2
    assert (host.planned_calls()[1][-1] == 0) == (not has_bias)
    with torch.no_grad():
        names["_linear"](x, weight.clone().requires_grad_(), bias, activation)
    assert len(host.planned_calls()) == 3


def test_layers_of_other_operands_take_no_plan() -> None:
    names, host = with_parts(linear(6, 8, 4, activation="gelu"))
    x, weight, bias = torch.randn(6, 8), torch.randn(4, 8), torch.randn(4)
    others: list[list[torch.Tensor]] = [
        [x[:5], weight, bias],
        [x[0], weight, bias],
        [x.T.contiguous().T, weight, bias],
        [x.view(2, 3, 8).transpose(0, 1), weight.T.contiguous().T, bias],
        [x, weight, torch.randn(8)[::2]],
        [torch.randn(6 * 8 + 1)[1:].view(6, 8), weight, bias],
        [x, weight],
        [x[:0], weight, bias],
        [x[:, :0], weight[:, :0], bias],
    ]
    converted = [x.bfloat16(), weight.bfloat16(), bias.bfloat16()]
    for given in (*others, converted):
        torch.testing.assert_close(
            names["_linear"](*given, activation="gelu"), functional.gelu(functional.linear(*given))
        )
        assert len(host.planned_calls()) == (given is converted)
    # The activation is another launch there.
    torch.testing.assert_close(names["_linear"](x, weight, bias, "relu"), functional.linear(x, weight, bias).relu())
    assert [number for number, *_ in host.planned_calls()] == [1, 1]
    with pytest.raises(TypeError, match="Float and Float and Half"):
        names["_linear"](x, weight, bias.half())
    with pytest.raises(RuntimeError, match=re.escape("cannot multiply [6, 8] by the transpose of [8, 4]")):
        names["_linear"](x, weight.T, bias)
    with pytest.raises(RuntimeError, match="must be on one GPU, not on cpu and meta"):
        names["_linear"](x, weight, bias.to("meta"))


def test_sums_with_a_product_are_those_of_torch() -> None:
    names, _ = with_parts()
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    for c in (torch.randn(3, 5), torch.randn(5), torch.randn(3, 1)):
        for beta, alpha in ((1, 1), (0.5, 1), (1, -2), (3, 0.25)):
            expected = torch.addmm(c, a, b, beta=beta, alpha=alpha)
            torch.testing.assert_close(names["_added"](c, a, b, beta, alpha), expected)
    unread = torch.full((3, 5), torch.nan)
    torch.testing.assert_close(names["_added"](unread, a, b, 0, 2), 2 * (a @ b))
    with pytest.raises(RuntimeError):
        names["_added"](torch.randn(2, 3, 5), a, b, 1, 1)


EINSUMS = {
    "ij,jk->ik": True,
    "ij,jk": True,
    "ij , kj -> ki": True,
    "ba,cb": True,
    "bhtd,bhsd->bhts": True,
    "bthd,bshd->bhts": True,
    "bhts,bshd->bthd": True,
    "xijc,yjic->yx": True,
    "bij,jk->kbi": True,
    "i,i->": True,
    "i,ij->j": True,
    "Zai,iZ": True,
    "ij,ij->ij": False,
    "i,j->ij": False,
    "ijx,jk->ik": False,
    "ii,ij->ij": False,
    "...ij,jk->...ik": False,
}


@pytest.mark.parametrize("equation", EINSUMS)
def test_einsums_are_those_of_torch(equation: str) -> None:
    given = [torch.randn([2 + "dhbtsijkcxyaZ".find(i) % 4 for i in names.strip()]) for names in operands_of(equation)]
    spec = ProductSpec.einsum(equation, *given)
    assert (spec is not None) == EINSUMS[equation]
    names, host = with_parts(*([spec] if spec else []))
    results = []
    for einsum in (names["_einsum"], torch.einsum):
        leaves = [x.clone().requires_grad_() for x in given]
        out = einsum(equation, *leaves)
        out.pow(2).sum().backward()
        results.append([out.detach(), *(x.grad for x in leaves)])
    torch.testing.assert_close(*results)
    assert len(host.planned_calls()) == EINSUMS[equation]


def operands_of(equation: str) -> list[str]:
    return equation.partition("->")[0].replace("...", "Z").split(",")


def test_einsums_broadcast_sizes_of_one() -> None:
    names, _ = with_parts()
    a, b = torch.randn(3, 1), torch.randn(4, 5)
    torch.testing.assert_close(names["_einsum"]("ij,jk->ik", a, b), torch.einsum("ij,jk->ik", a, b))


@pytest.mark.parametrize("name", ["05_matrix_scalar.py", "12_diagonal.py"])
def test_factors_and_their_gradients_are_those_of_torch(texts: dict[str, str], name: str) -> None:
    names, _ = on_the_cpu(texts[name])
    first = torch.randn(3, 8).T if name.startswith("05") else torch.randn(8)
    second = 3.14 if name.startswith("05") else torch.randn(8, 5)
    results = []
    for model in (names["ModelNew"](), problem_model(PROBLEMS[name])):
        arguments = [x.clone().requires_grad_() if isinstance(x, torch.Tensor) else x for x in (first, second)]
        out = model(*arguments)
        out.pow(2).sum().backward()
        results.append([out.detach(), *(x.grad for x in arguments if isinstance(x, torch.Tensor))])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("diagonal", [-9, -1, 0, 2, 9])
def test_triangles_and_their_gradients_are_those_of_torch(texts: dict[str, str], diagonal: int, upper: bool) -> None:
    names, _ = on_the_cpu(texts["14_upper_triangular.py"])
    x = torch.randn(2, 4, 6)
    results = []
    for triangle in (names["_triangle"], torch.triu if upper else torch.tril):
        leaf = x.clone().requires_grad_()
        out = triangle(leaf * 1, diagonal, upper) if triangle is names["_triangle"] else triangle(leaf * 1, diagonal)
        out.pow(2).sum().backward()
        results.append((out.detach(), leaf.grad))
    torch.testing.assert_close(*results)


def test_parameters_have_the_draws_of_the_model() -> None:
    problem = ProblemFile("small.py", SMALL)
    text = text_of(problem)
    names, _ = on_the_cpu(text)
    models = []
    for create in (lambda: names["ModelNew"](1), lambda: problem_model(problem, 1)):
        torch.manual_seed(3)
        models.append(create())
    ours, theirs = (dict(model.named_parameters()) for model in models)
    assert list(ours) == list(theirs) == ["weight", "linear.weight", "linear.bias"]
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0)
    x = torch.randn(4, 6)
    torch.testing.assert_close(models[0](x), models[1](x))
    assert [name for name in executed(text) if not name.startswith("_")] == ["ModelNew"]
    ast.parse(text, feature_version=(3, 8))


def both_models(text: str, *arguments: object) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The written model and the problem's own, with the same parameters."""
    problem = ProblemFile("p.py", text)
    ours, theirs = on_the_cpu(text_of(problem))[0]["ModelNew"](*arguments), problem_model(problem, *arguments)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def test_parameters_in_lists_are_found() -> None:
    layers = "torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 3))"
    ours, theirs = both_models(RESIDUAL.replace("torch.nn.Linear(4, 3)", layers))
    x = torch.randn(5, 4)
    torch.testing.assert_close(ours(x), theirs(x))


FORWARDS = [
    "(a @ b + c).T",
    "(a @ b + c).unsqueeze(0) @ (c.T * 2)",
    "torch.tril(a @ b, 1) + c * 0.5",
    "torch.triu(a) @ b",
    "torch.einsum('ik,kj->ji', a, b) * c.T",
    "(a @ b).reshape(-1)",
    "(lambda d: d + d)(a @ b)",
    "(lambda d: torch.triu(d) + d)(a @ b)",
    "(lambda d: torch.triu(d) @ torch.tril(d).T + d @ d.T)(a @ b)",
    "(lambda d: d * d + torch.triu(d))(torch.triu(a @ b))",
]


@pytest.mark.parametrize("forward", FORWARDS)
def test_expressions_keep_their_order(forward: str) -> None:
    text = f"""
import torch
class Model(torch.nn.Module):
    def forward(self, a, b, c):
        return {forward}
def get_inputs():
    return [torch.rand(6, 4), torch.rand(4, 5), torch.rand(6, 5)]
def get_init_inputs():
    return []
"""
    problem = ProblemFile("p.py", text)
    names, _ = on_the_cpu(text_of(problem))
    arguments = torch.randn(6, 4), torch.randn(4, 5), torch.randn(6, 5)
    torch.testing.assert_close(names["ModelNew"]()(*arguments), problem_model(problem)(*arguments))


def test_a_product_that_is_used_twice_is_computed_once() -> None:
    text = PROBLEMS["01_square.py"].text.replace("return torch.matmul(A, B)", "C = A @ B; return C.triu() + C * C")
    model = text_of(ProblemFile("p.py", text)).partition("class ModelNew")[2]
    assert model.count("_matmul(") == 1
    assert "_triangle(" not in model


RESIDUAL = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
    def forward(self, x):
        x = self.layer(x)
        return x * 0.5 + x.clone().detach()
def get_inputs():
    return [torch.rand(5, 4)]
def get_init_inputs():
    return []
"""


def test_forward_asks_for_the_mode_where_the_model_does() -> None:
    text = RESIDUAL.replace("return x * 0.5 +", "return x * (0.5 if self.training else 0.25) +")
    assert "in training, " in text_of(ProblemFile("p.py", text)).partition("import")[0].replace("\n# ", " ")
    models, x = both_models(text), torch.randn(5, 4)
    for training in (True, False):
        ours, theirs = (model.train(training)(x) for model in models)
        torch.testing.assert_close(ours, theirs)


def test_the_constructor_may_be_given_other_numbers() -> None:
    text = RESIDUAL.replace("__init__(self)", "__init__(self, n, scale)").replace("return []", "return [3, 0.5]")
    text = text.replace("Linear(4, 3)", "Linear(4, n); self.scale = scale").replace("x * 0.5", "x * self.scale")
    ours, theirs = both_models("n, scale = 3, 0.5\n" + text, 6, 0.25)
    x = torch.randn(5, 4)
    torch.testing.assert_close(ours(x), theirs(x))


def test_gradients_stop_where_the_model_stops_them() -> None:
    x = torch.randn(5, 4)
    results = []
    for model in both_models(RESIDUAL):
        leaf = x.clone().requires_grad_()
        out = model(leaf)
        out.pow(2).sum().backward()
        results.append([out.detach(), leaf.grad, *(parameter.grad for parameter in model.parameters())])
    torch.testing.assert_close(*results)


def test_a_model_that_is_not_a_class_of_the_file_is_refused() -> None:
    text = "import torch\nModel = torch.nn.Identity\ndef get_inputs(): return [torch.rand(2, 2)]\n"
    problem = ProblemFile("p.py", text + "def get_init_inputs(): return []\n")
    with pytest.raises(ProblemError, match="Model must be a class that the file itself defines"):
        text_of(problem)


def test_a_standalone_module_has_the_inputs_of_the_problem() -> None:
    problem = ProblemFile("p.py", PROBLEMS["12_diagonal.py"].text.replace("4096", "8"))
    names = executed(text_of(problem, standalone=True))
    assert [name for name in names if not name.startswith("_")] == ["ModelNew", "get_inputs", "get_init_inputs"]
    assert [tuple(x.shape) for x in names["get_inputs"]()] == [(8,), (8, 8)]
    assert names["get_init_inputs"]() == []
