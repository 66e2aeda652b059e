"""Modules that `tilesmith optimize` writes, built and run: results and gradients, for any operands."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from chained_models import FILES

from tilesmith.bench.errors import error
from tilesmith.core.device import installed
from tilesmith.kernelbench.chain_spec import ChainSpec, name_of
from tilesmith.kernelbench.check.watch import kernels
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.products import ProductSpec, plans_of
from tilesmith.kernelbench.recognize import recognize
from tilesmith.kernelbench.whole_model import WholeModel
from tilesmith.kernelbench.write import module_text, written

PROBLEMS = Path(__file__).parents[2] / "src" / "tilesmith" / "kernelbench" / "problems"


def run(text: str) -> dict[str, Any]:
    """What a module defines when it is run from a string."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names


@pytest.fixture(scope="module")
def irregular() -> Any:
    """The model of problem 8, and its inputs."""
    problem = ProblemFile.read(PROBLEMS / "08_irregular.py")
    model = run(written(problem, recognize(problem), installed(0), "fp32"))["ModelNew"]()
    return model, [x.cuda() for x in run(problem.text)["get_inputs"]()]


def test_gradients_are_as_accurate_as_torchs(irregular: Any) -> None:
    model, (a, b) = irregular
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    upstream = torch.randn(a.shape[0], b.shape[1], device="cuda")
    model(a, b).backward(upstream)
    assert a.grad is not None
    assert b.grad is not None
    x, y = a.detach(), b.detach()
    for ours, (left, right) in ((a.grad, (upstream, y.T)), (b.grad, (x.T, upstream))):
        found, torchs = error(ours, left, right), error(torch.matmul(left, right), left, right)
        assert found.norm <= 3 * max(torchs.norm, 3e-7)
        assert found.comp <= 3 * max(torchs.comp, 1e-6)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(8205, 2949, 5921), (1, 1, 1), (3, 10000, 5), (129, 70, 257), (0, 4, 5), (4, 0, 5)], ids=str
)
def test_any_sizes_and_strides(irregular: Any, m: int, k: int, n: int) -> None:
    model, _ = irregular
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    for x, y in ((a, b), (a.T.contiguous().T, b), (a, b.T.contiguous().T)):
        out = model(x, y)
        assert out.shape == (m, n)
        found = error(out, a, b)
        assert found.comp <= 2e-6 * max(k, 1) ** 0.5
    assert torch.equal(model(a[::2], b[:, ::3]), model(a[::2].contiguous(), b[:, ::3].contiguous()))


def test_operands_on_the_cpu_are_moved(irregular: Any) -> None:
    model, _ = irregular
    a, b = torch.randn(50, 60), torch.randn(60, 70)
    out = model(a, b)
    assert out.device.type == "cpu"
    torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-4)


def test_the_planned_product_takes_no_other_memory_than_its_own(irregular: Any) -> None:
    model, (a, b) = irregular
    first = model(a, b)
    gc.collect()  # what other tests left is not to go in between
    held = torch.cuda.memory_allocated()
    for _ in range(3):
        torch.testing.assert_close(model(a, b), first, rtol=0, atol=0)
    assert torch.cuda.memory_allocated() == held


def test_a_triangle_of_a_product(tmp_path: Path) -> None:
    """Of triangles, which are skipped where they are zero, and of other matrices."""
    text = (PROBLEMS / "14_upper_triangular.py").read_text().replace("N = 4096", "N = 1024")
    path = tmp_path / "problem.py"
    path.write_text(text)
    problem = ProblemFile.read(path)
    model = run(written(problem, recognize(problem), installed(0), "fp32"))["ModelNew"]()
    a, b = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
    for x, y in ((a.triu(), b.triu()), (a, b), (a.tril(), b.triu())):
        exact = torch.triu(x.double() @ y.double())
        found = model(x, y)
        assert torch.equal(found, found.triu())
        assert ((found.double() - exact).norm() / exact.norm()).item() < 3e-7


def test_layers_with_bias_and_activation_are_one_call_each() -> None:
    """An MLP of two layers: without gradients each is a plan with its epilogue, and with them it is as torch's."""
    x, first, second = torch.randn(4, 128, 256), torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 384)
    specs = [
        ProductSpec.linear(x, first.weight, has_bias=True, activation="gelu"),
        ProductSpec.linear(torch.empty(4, 128, 1024), second.weight, has_bias=True),
    ]
    device = installed(0)
    plans = plans_of(specs, device, "fp32")
    text = module_text(
        what="two layers",
        plans=plans,
        parts=["product", "linear"],
        constructor=("", "_torch.nn.Module", ""),
        forward='def forward(self, x, w, b, v, c):\n    return _linear(_linear(x, w, b, "gelu"), v, c)\n',
        device=device,
        accuracy="fp32",
    )
    names = run(text)
    given = [y.detach().cuda() for y in (x, first.weight, first.bias, second.weight, second.bias)]
    model = names["ModelNew"]()
    model(*given)  # the first call sets kernels up
    launched = kernels(lambda: model(*given))
    assert len(launched) == sum(len(plans[spec].launches) for spec in specs), launched
    out = model(*given)

    ours, exact = [y.clone().requires_grad_() for y in given], [y.double().requires_grad_() for y in given]
    functional = torch.nn.functional
    expected = functional.linear(functional.gelu(functional.linear(*exact[:3])), *exact[3:])
    upstream = torch.randn_like(out)
    with_gradients = model(*ours)
    with_gradients.backward(upstream)
    expected.backward(upstream.double())
    for result, truth in [
        (out, expected),
        (with_gradients, expected),
        *((y.grad, z.grad) for y, z in zip(ours, exact, strict=True)),
    ]:
        assert result is not None
        assert truth is not None
        assert ((result.double() - truth).norm() / truth.norm()).item() < 5e-6


# Segments for a part of a warp, a warp and a block, by four elements and by one, and more than a block has threads.
SHAPES: dict[int, list[tuple[int, ...]]] = {
    2: [
        (4, 37),
        (6, 4099),
        (12, 8),
        (300, 64),
        (7, 132),
        (33, 1000),
        (5, 4096),
        (3, 5004),
        (2, 60000),
        (2, 9001),
        (9, 61 * 4 + 4),
        (1, 1028),
    ],
    4: [(3, 8, 4, 6), (2, 8, 1, 1), (5, 16, 3, 5), (2, 8, 33, 64), (1, 24, 7, 301), (160, 8, 100, 100)],
}


def operands_of(chain: ChainSpec, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Tensors that lie over one of this shape as those of a chain do."""
    kept = shape[: len(shape) - chain.reduced_dims]
    reduced = kept if chain.result == "dropped" else (*kept, *(1,) * chain.reduced_dims)
    given = []
    for text in chain.operands:
        basis, letters = (reduced, text[1:]) if text.startswith("/") else (shape, text)
        sizes = [
            n if letter == "n" else 1 for n, letter in zip(basis[len(basis) - len(letters) :], letters, strict=True)
        ]
        given.append(torch.rand((shape[1],) if text == "c" else sizes, device="cuda") + 0.5)
    return given


@pytest.mark.parametrize("kind", FILES)
def test_chains_are_as_exact_as_their_steps(kind: str) -> None:
    found = recognize(FILES[kind])
    assert isinstance(found, WholeModel)
    module = run(written(FILES[kind], found, installed(0), "fp32"))
    for number, chain in enumerate(found.chains):
        names: dict[str, Any] = {"_chain": lambda *_: lambda steps: steps, "_torch": torch, "_aten": torch.ops.aten}
        exec(chain.function(number), names)
        numbers = [1.5] * sum(name.startswith("number") for name in chain.arguments)
        for shape in SHAPES[len(chain.operands[0])]:
            is_of_sizes = "layer_norm" in chain.does and shape[-1] not in (6, 8)  # which the steps have written down
            if is_of_sizes or (chain.groups and shape[1] % chain.groups):
                continue
            given = operands_of(chain, shape)
            calls = kernels(lambda: module[name_of(number)](*given, *numbers))  # noqa: B023
            assert len(calls) == 1, (chain.steps, shape, calls)
            exact = names[name_of(number)](*(x.double() for x in given), *numbers)
            torch.full_like(exact, torch.nan, dtype=torch.float32)  # where the result will be
            out = module[name_of(number)](*given, *numbers)
            torch.testing.assert_close(out.double(), exact, rtol=3e-5, atol=3e-5 * exact.abs().max().item())
