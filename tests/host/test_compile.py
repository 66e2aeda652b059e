"""Compiled programs under an override: which products become ours, with what of that which follows them.

Graphs of CUDA tensors are made of fake ones, and read. What they compute is tested on CPU tensors, by the emulator.
"""

import importlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config
from torch._inductor import scheduler
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import tilesmith
from tilesmith.core.device import named
from tilesmith.core.plan import Plan
from tilesmith.inductor import hook
from tilesmith.inductor.backend import backend
from tilesmith.inductor.graph_pass import ProductPass, compiling_by, replace_products
from tilesmith.inductor.site import Site
from tilesmith.override.settings import Settings
from tilesmith.runtime import executor, registry

pytestmark = pytest.mark.usefixtures("emulator_cache", "fresh_dynamo")

BF16, FP32 = torch.bfloat16, torch.float32
M, K, N = 1024, 512, 2048


@pytest.fixture(autouse=True)
def a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesmith.core.device.installed", lambda index: named("h200"))


def graph_of(function: Callable[..., Any], *shapes: Any, dtype: torch.dtype = BF16) -> GraphModule:
    """What Inductor's pass before ours leaves of a function of CUDA tensors, each a shape or a shape and a type."""
    with FakeTensorMode(), torch.no_grad():
        typed = (each if isinstance(each[0], tuple) else (each, dtype) for each in shapes)
        inputs = [torch.empty(shape, dtype=of, device="cuda") for shape, of in typed]
        return make_fx(function, decomposition_table=select_decomp_table())(*inputs)


def products(gm: GraphModule, settings: Settings | None = None) -> list[Any]:
    """What the pass makes of the products: options that are not the default, and which operands there are. A product
    that is left to torch is its name."""
    replace_products(gm.graph, "cuda", settings or Settings())
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    found: list[Any] = []
    for node in gm.graph.nodes:
        if node.target is torch.ops.tilesmith.product.default:
            _, _, bias, residual = node.args
            has = {"bias": True} if bias is not None else {}
            has |= {"residual": True} if residual is not None else {}
            found.append(has | {name: each for name, each in node.kwargs.items() if name != "accuracy"})
        elif any(name in str(node.target) for name in ("mm.", "bmm.")):
            found.append(str(node.target).removeprefix("aten.").removesuffix(".default"))
    return found


def operations(gm: GraphModule) -> set[str]:
    return {node.target.overloadpacket.__name__ for node in gm.graph.nodes if node.op == "call_function"}


X, W, BIAS, OUT = (M, K), (N, K), (N,), (M, N)


def then_multiplied(y: Tensor) -> Tensor:
    """Something for which Inductor writes no loop, so that what comes before is worth taking."""
    return torch.cumsum(y, 0)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda x, w: x @ w.T, (X, W), {}),
        (functional.linear, (X, W, BIAS), {"bias": True}),
        (lambda x, w, b: torch.relu(functional.linear(x, w, b)), (X, W, BIAS), {"bias": True, "activation": "relu"}),
        (
            lambda x, w, b: functional.gelu(functional.linear(x, w, b)),
            (X, W, BIAS),
            {"bias": True, "activation": "gelu"},
        ),
        (
            lambda x, w, b: functional.gelu(functional.linear(x, w, b), approximate="tanh"),
            (X, W, BIAS),
            {"bias": True, "activation": "gelu_tanh"},
        ),
        (lambda x, w: functional.silu(x @ w.T), (X, W), {"activation": "silu"}),
        (lambda x, w: (y := x @ w.T) * torch.sigmoid(y), (X, W), {"activation": "silu"}),
        (lambda x, w, r: r + x @ w.T, (X, W, OUT), {"residual": True}),
        (lambda x, w, r: x @ w.T - r, (X, W, OUT), {"residual": True, "residual_scale": -1.0}),
        (lambda x, w, r: torch.add(x @ w.T, r, alpha=3), (X, W, OUT), {"residual": True, "residual_scale": 3.0}),
        (lambda x, w, b: (x @ w.T) * 0.5 + b, (X, W, BIAS), {"scale": 0.5, "bias": True}),
        (lambda x, w: (x @ w.T) / 8, (X, W), {"scale": 0.125}),
        (
            lambda x, w, b, r: torch.relu(functional.linear(x, w, b)) + r,
            (X, W, BIAS, OUT),
            {"bias": True, "activation": "relu", "residual": True},
        ),
        (
            lambda c, x, w: torch.addmm(c, x, w.T, beta=0.5, alpha=2),
            (OUT, X, W),
            {"residual": True, "residual_scale": 0.5, "scale": 2.0},
        ),
        (lambda x, w, b: functional.linear(x, w, b), ((4, M, K), W, BIAS), {"bias": True}),
        (lambda c, x, w: torch.addmm(c, x, w.T).view(4, -1, N), ((1, N), X, W), {"residual": True}),
        (
            lambda x, w, b, r: functional.linear(x, w, b) + r,
            ((4, M, K), W, BIAS, (4, M, N)),
            {"bias": True, "residual": True},
        ),
        (lambda a, b: torch.relu(torch.bmm(a, b)), ((4, M, K), (4, K, N)), {"activation": "relu"}),
        (lambda c, a, b: torch.baddbmm(c, a, b), ((4, M, N), (4, M, K), (4, K, N)), {"residual": True}),
    ],
)
def test_what_follows_a_product_is_in_its_launch(
    function: Callable[..., Tensor], shapes: tuple[Any, ...], expected: dict[str, Any], dtype: torch.dtype
) -> None:
    graph = graph_of(lambda *each: then_multiplied(function(*each)), *shapes, dtype=dtype)
    assert products(graph) == [expected]
    assert operations(graph) <= {"product", "permute", "view", "reshape", "cumsum", "t", "expand", "_unsafe_view"}


def test_values_that_others_want_stay() -> None:
    def both(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        sums = functional.linear(x, w, b)
        return then_multiplied(functional.gelu(sums)), sums  # which is what gelu's gradient is made of

    assert products(graph_of(both, X, W, BIAS)) == [{"bias": True}]

    def doubled(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w.T
        return then_multiplied(y + y)

    assert products(graph_of(doubled, X, W)) == [{}]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.clamp(x, 0, 1e6),
        lambda x: torch.where(x > 0, x, 0),  # of a NaN 0
        functional.leaky_relu,
        lambda x: torch.relu(x) * 2,
        lambda x: functional.gelu(x) * 0.5,
        torch.tanh,
        lambda x: torch.relu(torch.dropout(x, 0.5, True)),
    ],
)
def test_what_only_resembles_an_activation_stays(function: Callable[[Tensor], Tensor]) -> None:
    (found,) = products(graph_of(lambda x, w: then_multiplied(function(x @ w.T)), X, W, dtype=FP32))
    assert "activation" not in found


def test_a_loop_that_follows_has_activations_for_nothing() -> None:
    assert products(graph_of(lambda x, v, w: functional.silu(x @ v.T) * (x @ w.T), X, W, W)) == [{}, {}]
    assert products(graph_of(lambda x, w: (x @ w.T).float().exp().sum(-1), X, W)) == [{}]


def test_gradients_of_weights_in_float32_are_not_rounded_before() -> None:
    def gradient(g: Tensor, x: Tensor) -> Tensor:
        return (g.T @ x).float()

    assert products(graph_of(gradient, OUT, X)) == [{"out_dtype": FP32}]
    assert products(graph_of(lambda g, x: (x.T @ g).T.float(), OUT, X)) == [{"out_dtype": FP32}]
    with_former = graph_of(lambda g, x, former: former + (g.T @ x).float(), OUT, X, ((N, K), FP32))
    assert products(with_former) == [{"residual": True, "out_dtype": FP32}]


def test_what_an_override_leaves_to_torch_stays_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    large = (X, (K, N))
    assert products(graph_of(product, *large, dtype=torch.float64)) == ["mm"]
    assert products(graph_of(product, *large), Settings.of(None, "bmm", None, 0, False)) == ["mm"]
    assert products(graph_of(product, *large), Settings.of(None, None, "mm", 0, False)) == ["mm"]
    assert products(graph_of(product, *large), Settings.of(None, None, None, 2 * M * K * N + 1, False)) == ["mm"]
    assert products(graph_of(product, *large), Settings.of(None, lambda p: p.k < K, None, 0, False)) == ["mm"]
    assert products(graph_of(product, (7683, 6774), (6774, 2))) == ["mm"]  # torch is faster
    monkeypatch.setattr("tilesmith.core.device.installed", lambda index: named("a100"))
    assert products(graph_of(product, *large)) == ["mm"]
    assert products(graph_of(product, *large, dtype=FP32)) == [{}]


@pytest.mark.parametrize("rank", [2, 3])
def test_sizes_that_are_symbols_are_not_asked_for(rank: int) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
        y = functional.gelu(functional.linear(x, w, b))
        return then_multiplied(y + r if rank == 2 else y)

    batch = (6,) if rank == 3 else ()
    real = [torch.empty(*batch, 96, K, device="meta"), torch.empty(N, K, device="meta")]
    real += [torch.empty(N, device="meta"), torch.empty(*batch, 96, N, device="meta")]
    gm = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="symbolic")(*real)
    value = next(node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder")
    guards = value.fake_mode.shape_env.guards
    before = len(guards)
    previous = registry.register("meta", lambda: executor.CUDA)  # tensors there stand for CUDA's
    try:
        replace_products(gm.graph, "meta", Settings())
    finally:
        registry.register("meta", previous)
    assert len(guards) == before
    names = [str(node.target) for node in gm.graph.nodes]
    assert "tilesmith.product.default" in names
    assert "aten.erf.default" not in names


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(x)))  # type: ignore[no-any-return]


@contextmanager
def ours(**settings: Any) -> Iterator[None]:
    with tilesmith.emulate("h200"), tilesmith.override(**settings):
        yield


def reasons() -> set[str]:
    return {each.reason for each in tilesmith.stats().entries if each.where == "torch"}


def test_a_compiled_program_computes_the_same() -> None:
    torch.manual_seed(0)
    model, exact = Mlp(), Mlp().double()
    exact.load_state_dict(model.state_dict())
    x = torch.randn(5, 4, 16)
    expected = exact(x.double())
    expected.sum().backward()
    with ours():
        compiled = torch.compile(model, fullgraph=True, dynamic=True)
        for rows in (5, 3):
            with torch.no_grad():
                torch.testing.assert_close(compiled(x[:rows]).double(), expected[:rows], rtol=1e-5, atol=1e-6)
        compiled(x).sum().backward()
    for ours_, exactly in zip(model.parameters(), exact.parameters(), strict=True):
        assert ours_.grad is not None and exactly.grad is not None
        torch.testing.assert_close(ours_.grad.double(), exactly.grad, rtol=1e-5, atol=1e-5)
    assert reasons() == set()
    operators = {each.operator for each in tilesmith.stats().entries}
    assert operators == {"addmm", "mm"}


def test_a_compiled_program_in_bfloat16_computes_the_same_after_the_override_too() -> None:
    torch.manual_seed(0)
    model = Mlp().bfloat16()
    x = torch.randn(5, 16, dtype=BF16)
    with torch.no_grad():
        exact = Mlp().double()
        exact.load_state_dict(model.state_dict())
        expected = exact(x.double())
        with ours():
            compiled = torch.compile(model, backend="tilesmith_for_tests")
            found = compiled(x)
        assert (compiled(x).double() - found.double()).abs().max() < 2e-2
    assert (found.double() - expected).abs().max() < 2e-2
    names = {each.reason for each in tilesmith.stats().entries}
    assert "in a compiled program" not in names  # sizes are numbers, so plans are known by name


@pytest.fixture(autouse=True, scope="module")
def a_backend_by_name() -> None:
    """The package's entry point is there where it is installed: here it has another name."""
    from torch._dynamo import register_backend

    register_backend(backend, name="tilesmith_for_tests")


def test_the_entry_point_of_the_backend_is_there() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["tilesmith"].partition(":")
    assert getattr(importlib.import_module(module), name) is backend


def test_a_site_looks_nothing_up_after_its_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site as on a GPU, with CPU tensors and without a launch."""
    calls: list[str] = []

    class Plain(executor.CompiledPlan):
        __slots__ = ()

        def __call__(self, a: Tensor, b: Tensor, out: Any = None, packed: Any = None, epilogue: Any = None) -> Tensor:
            calls.append("plain" if epilogue is None else "with an epilogue")
            return torch.mm(a, b, out=out)

        def at(self, a: int, b: int, out: Tensor, added: tuple[int, ...]) -> Tensor:
            calls.append(f"{len(added)} of an epilogue")
            return out

    def compiled(plan: Plan, index: int) -> executor.CompiledPlan:
        calls.append(plan.problem.out_shape.__repr__())
        return Plain(plan, 0, None)

    monkeypatch.setattr("tilesmith.runtime.executor.compiled", compiled)
    before = registry.register("cpu", lambda: executor.CUDA)
    try:
        a, b, out = torch.randn(64, 32), torch.randn(32, 48), torch.empty(64, 48)
        site, biased = Site("mm", "fp32", layouts=[]), Site("addmm", "fp32", has_bias=True, layouts=[])
        for _ in range(3):
            site(a, b, out=out)
            assert torch.equal(out, a @ b)
            biased(a, b, b[0].clone(), out=out)
    finally:
        registry.register("cpu", before)
    plans = ["(64, 48)"]
    first = [*plans, "plain", *plans, "with an epilogue"]
    assert calls == first + ["0 of an epilogue", "5 of an epilogue"] * 2


def test_caches_of_compiled_programs_know_the_settings() -> None:
    the_pass = ProductPass("cuda", None)

    def identity(settings: Settings | None) -> object:
        if settings is None:
            return the_pass.uuid()
        with compiling_by(settings):
            return the_pass.uuid()

    assert identity(None) is None
    assert identity(Settings()) == identity(Settings.of(None, None, None, 0, True))
    found = [Settings(), Settings.of("tf32", None, None, 0, False), Settings.of(None, None, "mm", 0, False)]
    found += [Settings.of(None, lambda p: True, None, 0, False), Settings.of(None, None, None, 5, False)]
    assert len({repr(identity(each)) for each in found}) == len(found)


def test_an_override_does_not_import_the_compiler_before_the_program_does() -> None:
    script = """
import sys, torch, tilesmith
tilesmith.enable()
assert not [name for name in sys.modules if name.startswith(("torch._inductor", "torch._dynamo", "sympy"))]
assert "tilesmith.inductor.graph_pass" not in sys.modules
finders = len(sys.meta_path)
import torch._inductor.compile_fx
from torch._inductor.codegen.common import custom_backend_passes
assert type(custom_backend_passes["cuda"]).__name__ == "ProductPass"
assert len(sys.meta_path) == finders - 1
"""
    subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=True
    )


def test_the_pass_of_another_runs_before_ours() -> None:
    seen: list[str] = []

    class Other(type(ProductPass("cuda", None)).__mro__[1]):  # type: ignore[misc]
        def __call__(self, gm: GraphModule) -> None:
            seen.append("other")

        def uuid(self) -> str:
            return "other"

    the_pass = ProductPass("cuda", Other())
    assert the_pass.uuid() == "other"
    graph = graph_of(lambda x, w: x @ w.T, X, W)
    with compiling_by(Settings()):
        assert the_pass.uuid()[-1] == "other"
        the_pass(graph)
    assert seen == ["other"]
    assert products(graph) == [{}]
    hook.install()  # again, which changes nothing


def multiplied_with_zeros(x: Tensor, w: Tensor, added: Tensor | None = None) -> Tensor:
    """As Inductor pads a product: all sizes to multiples of 8, and the part of the result that is wanted."""
    (m, k), n = x.shape, w.shape[1]
    more_m, more_k, more_n = -m % 8, -k % 8, -n % 8
    if more_m or more_k:
        x = torch.ops.aten.constant_pad_nd(x, [0, more_k, 0, more_m])
    if more_k or more_n:
        w = torch.ops.aten.constant_pad_nd(w, [0, more_n, 0, more_k])
    if added is None:
        result = torch.mm(x, w)
    else:
        zeros = added.new_zeros(*added.shape[:-1], more_n)
        result = torch.addmm(torch.cat([added, zeros], -1) if more_n else added, x, w)
    for dim, more in enumerate((more_m, more_n)):
        if more:
            result = torch.ops.aten.slice.Tensor(result, dim, 0, -more)
    return result


@pytest.mark.parametrize(
    ("function", "shapes", "copies"),
    [
        (lambda x, w: multiplied_with_zeros(x, w.T), ((2048, 768), (5921, 768)), 0),
        (lambda x, w, b: multiplied_with_zeros(x, w.T, b), ((2048, 768), (5921, 768), (5921,)), 0),
        (lambda d, w: multiplied_with_zeros(d, w), ((2048, 5921), (5921, 768)), 1),
        (lambda d, x: multiplied_with_zeros(d.T, x), ((2048, 5921), (2048, 768)), 1),
        (lambda a, b: multiplied_with_zeros(a, b), ((2045, 763), (763, 2051)), 2),
    ],
    ids=["result", "result and bias", "K", "A across K", "all"],
)
def test_products_that_inductor_padded_are_ours_as_they_were(
    function: Callable[..., Tensor], shapes: Any, copies: int
) -> None:
    graph = graph_of(lambda *tensors: then_multiplied(function(*tensors)), *shapes)
    (found,) = products(graph)
    assert found == ({"bias": True} if len(shapes) == 3 else {})
    assert not operations(graph) & {"constant_pad_nd", "cat", "slice"}
    assert sum(node.target is torch.ops.tilesmith.aligned.default for node in graph.graph.nodes) == copies


def test_an_operand_is_aligned_once_for_all_products() -> None:
    def gradients(d: Tensor, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return multiplied_with_zeros(d, w), multiplied_with_zeros(d.T, x)

    graph = graph_of(gradients, (2048, 5921), (5921, 768), (2048, 768))
    assert products(graph) == [{}, {}]
    assert sum(node.target is torch.ops.tilesmith.aligned.default for node in graph.graph.nodes) == 1


def test_padding_that_is_the_users_own_stays() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return then_multiplied(torch.ops.aten.constant_pad_nd(x, [0, 0, 0, 3]) @ w)

    graph = graph_of(program, (M, K), (K, N))
    assert products(graph) == [{}]
    assert "constant_pad_nd" in operations(graph)


@pytest.mark.parametrize("is_computed", [False, True])
def test_unpadded_products_are_right(is_computed: bool) -> None:
    """Inductor pads for GPUs alone, so the program does; and Inductor's own code writes lines that are aligned."""

    def program(d: Tensor, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d = torch.sin(d) if is_computed else d
        return (
            multiplied_with_zeros(d, w),
            multiplied_with_zeros(d.T, x),
            torch.cumsum(multiplied_with_zeros(x, w.T), 0),
        )

    d, w, x = (torch.randn(shape).bfloat16() for shape in ((19, 21), (21, 13), (19, 13)))
    with ours(), torch.no_grad():
        found, (code,) = run_and_get_code(torch.compile(program, fullgraph=True), d, w, x)
    assert code.count("tilesmith_") > 3 and "(24, 1)" in code
    with torch.no_grad():
        for each, expected in zip(found, program(d.double(), w.double(), x.double()), strict=True):
            assert (each - expected).norm() <= 0.01 * expected.norm()


def test_parts_of_a_graph_have_the_buffers_that_they_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor writes a function for each part that it could capture; on the CPU it would not, but for this."""
    monkeypatch.setattr(scheduler.Scheduler, "should_partition", lambda *_: None)

    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w) @ w + 1

    x, w = torch.randn(8, 8), torch.randn(8, 8)
    with ours(), torch.no_grad(), inductor_config.patch(graph_partition=True):
        y, (code,) = run_and_get_code(torch.compile(program, fullgraph=True), x, w)
    assert "def partition_0" in code and "tilesmith_" in code
    torch.testing.assert_close(y, program(x, w))


def test_a_torch_without_a_place_for_the_pass_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "_is_installed", False)
    monkeypatch.delattr("torch._inductor.codegen.common.custom_backend_passes")
    with pytest.warns(UserWarning, match="has no place for Tilesmith's pass"):
        hook.install()
    hook.install()  # once
