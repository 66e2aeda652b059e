"""What follows a product, in its kernels: values against float64 and torch, gradients, graphs, packed layers."""

import itertools
from collections.abc import Callable

import pytest
import torch
from launched import constants_of
from torch import Tensor
from torch.nn import functional
from torchs_linear import Added, by_torch, ours

import tilesmith
from tilesmith.core import device
from tilesmith.core.epilogue import ACTIVATIONS, Epilogue
from tilesmith.core.problem import Problem
from tilesmith.kernels.hopper import constants as gemm
from tilesmith.kernels.hopper import family as hopper
from tilesmith.runtime import executor
from tilesmith.torch_ops import linear as op_linear

Shape = tuple[int, ...]

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SIZES = [
    *((1, 1, 1), (1, 257, 1000), (2, 64, 3), (5, 1000, 130), (16, 4096, 24), (17, 33, 65), (64, 64, 64)),
    *((127, 130, 129), (128, 256, 512), (300, 999, 203), (1000, 1001, 999), (256, 70000, 40), (128, 4096, 9000)),
]

each_activation = pytest.mark.parametrize("activation", [None, *ACTIVATIONS], ids=str)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype)


def wide(tensor: Added) -> Added:
    return None if tensor is None else tensor.double()


def assert_as_exact_as_torch(
    result: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Added = None,
    residual: Added = None,
    *,
    activation: str | None = None,
) -> None:
    """Its largest and its mean error are no larger than those of torch's functions one after the other; but a few
    roundings, of the size of what is summed, may be missed by luck."""
    exact = by_torch(x.double(), weight.double(), wide(bias), wide(residual), activation=activation)
    torchs = by_torch(x, weight, bias, residual, activation=activation)
    assert (result.shape, result.dtype, result.is_contiguous()) == (torchs.shape, torchs.dtype, True)
    size = functional.linear(x.double().abs(), weight.double().abs(), None if bias is None else bias.double().abs())
    size = size if residual is None else size + residual.double().abs()
    if size.numel() == 0:
        return
    sum_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    roundings = torch.finfo(result.dtype).eps / 2 * exact.abs() + 4 * torch.finfo(sum_dtype).eps * size
    ours, others = ((each.double() - exact).abs() for each in (result, torchs))
    assert (ours <= 1.5 * others.amax() + roundings).all()
    assert ours.mean() <= 1.25 * others.mean() + 0.5 * roundings.mean()


def check(x: Tensor, weight: Tensor, *added: Added, activation: str | None = None) -> None:
    result = ours(x, weight, *added, activation=activation)
    assert_as_exact_as_torch(result, x, weight, *added, activation=activation)


@each_dtype
@each_activation
def test_every_combination_in_every_layout(activation: str | None, dtype: torch.dtype) -> None:
    for (m, k, n), has_bias, has_residual in itertools.product(
        [(37, 70, 29), (256, 192, 320)], (False, True), (False, True)
    ):
        bias = normal(n, dtype=dtype) if has_bias else None
        for x, weight, residual in itertools.product(
            (normal(m, k, dtype=dtype), normal(k, m, dtype=dtype).T),
            (normal(n, k, dtype=dtype), normal(k, n, dtype=dtype).T),
            (normal(m, n, dtype=dtype), normal(n, m, dtype=dtype).T) if has_residual else (None,),
        ):
            check(x, weight, bias, residual, activation=activation)


@each_dtype
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    """From a single number to several tiles, with odd strides, few rows, few columns and sums that are split."""
    m, k, n = size
    x, weight, bias, residual = (normal(*shape, dtype=dtype) for shape in ((m, k), (n, k), (n,), (m, n)))
    for activation in (None, "gelu"):
        check(x, weight, bias, residual, activation=activation)
    check(x, weight, bias, activation="relu")
    check(x, weight, None, residual)


@pytest.mark.parametrize("accuracy", ["fp32", "tf32", "ieee"])
@pytest.mark.parametrize("size", [(37, 70, 29), (700, 900, 800), (8, 5000, 48)], ids=str)
def test_every_accuracy_is_that_of_its_product(size: tuple[int, int, int], accuracy: str) -> None:
    m, k, n = size
    x, weight, bias, residual = normal(m, k), normal(n, k), normal(n), normal(m, n)
    result = tilesmith.linear(x, weight, bias, activation="silu", residual=residual, accuracy=accuracy)
    sums = tilesmith.matmul(x, weight.T, accuracy=accuracy)
    torch.testing.assert_close(result, functional.silu(sums + bias) + residual, rtol=1e-5, atol=1e-4)


@each_dtype
def test_batches_and_residuals_that_are_broadcast(dtype: torch.dtype) -> None:
    weight, bias = normal(48, 40, dtype=dtype), normal(48, dtype=dtype)
    x = normal(4, 9, 40, dtype=dtype)
    shapes: list[Shape] = [(4, 9, 48), (9, 48), (48,), (1,), (4, 1, 48), (4, 9, 1), ()]
    for residual in (*(normal(*s, dtype=dtype) for s in shapes), normal(4, 9, 96, dtype=dtype)[..., ::2]):
        check(x, weight, bias, residual, activation="gelu")
        check(x.transpose(0, 1).contiguous().transpose(0, 1), weight, bias, residual, activation="gelu")
    check(x[0, 0], weight, bias, normal(48, dtype=dtype), activation="gelu")


@pytest.mark.parametrize("shift", [1, 3])
@each_dtype
def test_misaligned_bias_and_residual(dtype: torch.dtype, shift: int) -> None:
    x, weight = normal(64, 64, dtype=dtype), normal(64, 64, dtype=dtype)
    bias, residual = normal(64 + shift, dtype=dtype)[shift:], normal(64 * 64 + shift, dtype=dtype)[shift:].view(64, 64)
    check(x, weight, bias, residual, activation="relu")


@each_dtype
def test_nothing_to_sum_or_to_store(dtype: torch.dtype) -> None:
    check(normal(3, 0, dtype=dtype), normal(5, 0, dtype=dtype), normal(5, dtype=dtype), normal(3, 5, dtype=dtype))
    check(normal(0, 4, dtype=dtype), normal(5, 4, dtype=dtype), normal(5, dtype=dtype), activation="gelu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_wider_result(dtype: torch.dtype) -> None:
    x, weight, bias = normal(130, 200, dtype=dtype), normal(90, 200, dtype=dtype), normal(90, dtype=dtype)
    residual = normal(130, 90)
    result = tilesmith.linear(x, weight, bias, activation="gelu", residual=residual, out_dtype=torch.float32)
    assert_as_exact_as_torch(result, x.float(), weight.float(), bias.float(), residual, activation="gelu")


def test_mixed_types() -> None:
    x, weight, bias, residual = normal(300, 400, dtype=torch.bfloat16), normal(200, 400), normal(200), normal(300, 200)
    result = tilesmith.linear(x, weight, bias, activation="gelu", residual=residual, accuracy="fp32")
    assert_as_exact_as_torch(result, x.float(), weight, bias, residual, activation="gelu")


@each_activation
def test_infinities_and_nans_are_torchs(activation: str | None) -> None:
    special = [float("inf"), -float("inf"), float("nan"), 1e30, -1e30, 0.0, -100.0]
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = torch.tensor(special, device="cuda", dtype=dtype).unsqueeze(1)
        weight, bias = torch.ones(1, 1, device="cuda", dtype=dtype), normal(1, dtype=dtype)
        result, expected = (f(x, weight, bias, activation=activation) for f in (ours, by_torch))
        torch.testing.assert_close(result, expected, equal_nan=True)


def test_a_wrong_argument_raises_on_the_short_way_too() -> None:
    x, weight = normal(3, 4), normal(2, 4)
    with pytest.raises(ValueError, match="'tanh'"):
        tilesmith.linear(x, weight, activation="tanh")
    for message, own_weight, bias, residual in (
        ("bias must have shape", weight, normal(3), None),
        ("residual of shape", weight, None, normal(4, 2)),
        ("residual to have the dtype", weight, None, normal(3, 2).double()),
        ("same device", weight, normal(2).cpu(), None),
        ("weight must be a matrix", weight[0], None, None),
    ):
        with pytest.raises(RuntimeError, match=message):
            tilesmith.linear(x, own_weight, bias, residual=residual)


def gradients(
    function: Callable[..., torch.Tensor], *tensors: torch.Tensor, activation: str | None
) -> tuple[torch.Tensor, ...]:
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    result = function(*leaves, activation=activation)
    return torch.autograd.grad(
        result, leaves, torch.linspace(-1, 1, result.numel(), device="cuda").reshape_as(result).to(result.dtype)
    )


@each_activation
def test_gradients_are_those_of_float64(activation: str | None) -> None:
    for function in (ours, op_linear.linear):
        for shape in ((130, 70), (3, 50, 70)):
            tensors = normal(*shape), normal(90, 70), normal(90), normal(*shape[:-1], 90)
            found = gradients(function, *tensors, activation=activation)
            expected = gradients(by_torch, *(t.double() for t in tensors), activation=activation)
            for one, other in zip(found, expected, strict=True):
                assert one.dtype == torch.float32
                torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_autocast_casts_as_torchs_linear(dtype: torch.dtype, requires_grad: bool) -> None:
    x, weight, bias = (t.requires_grad_(requires_grad) for t in (normal(64, 96), normal(80, 96), normal(80)))
    with torch.autocast("cuda", dtype=dtype):
        result, torchs = ours(x, weight, bias, activation="relu"), by_torch(x, weight, bias, activation="relu")
    assert result.dtype == torchs.dtype == dtype
    torch.testing.assert_close(result, torchs, rtol=0.02, atol=0.05)


def test_a_graph_replays_on_new_values() -> None:
    x, weight, bias, residual = normal(65, 33), normal(70, 33), normal(70), normal(65, 70)
    ours(x, weight, bias, residual, activation="gelu")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = ours(x, weight, bias, residual, activation="gelu")
    for tensor in (x, weight, bias, residual):
        tensor.copy_(normal(*tensor.shape))
    graph.replay()
    assert_as_exact_as_torch(result, x, weight, bias, residual, activation="gelu")


@pytest.mark.parametrize("mode", ["default", "max-autotune", "reduce-overhead"])
def test_compiled_layers_are_the_layers(mode: str) -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(tilesmith.nn.Linear(96, 160, activation="gelu"), tilesmith.nn.Linear(160, 64)).cuda()
    x = normal(128, 96)
    compiled = torch.compile(model, mode=mode, fullgraph=True)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    for _ in range(3):  # the third replays the graph of reduce-overhead
        torch.compiler.cudagraph_mark_step_begin()
        found = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 16, 130, 1000])
@each_activation
def test_a_packed_weight_is_as_good_as_the_weight(activation: str | None, rows: int) -> None:
    x, weight, bias, residual = normal(rows, 1000), normal(800, 1000), normal(800), normal(rows, 800)
    packed = tilesmith.pack(weight.mT)
    result = tilesmith.linear(x, packed, bias, activation=activation, residual=residual)
    assert_as_exact_as_torch(result, x, weight, bias, residual, activation=activation)
    leaf = x.clone().requires_grad_()
    result = tilesmith.linear(leaf, packed, bias, activation=activation, residual=residual)
    (found,) = torch.autograd.grad(result.sum(), leaf)
    (expected,) = torch.autograd.grad(by_torch(leaf, weight, bias, residual, activation=activation).sum(), leaf)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.fixture
def layer() -> tilesmith.nn.Linear:
    return tilesmith.nn.Linear(1000, 800, device="cuda", activation="gelu").eval()


def check_layer(layer: tilesmith.nn.Linear, rows: int = 300) -> None:
    x = normal(rows, layer.in_features)
    with torch.no_grad():
        assert_as_exact_as_torch(layer(x), x, layer.weight, layer.bias, activation=layer.activation)


def is_hopper() -> bool:
    return torch.cuda.get_device_capability()[0] == 9


def test_a_layer_packs_its_weight_once_and_anew_when_it_has_changed(layer: tilesmith.nn.Linear) -> None:
    check_layer(layer)
    first = layer._packed
    assert first is not None and (first.terms is not None) == is_hopper()
    check_layer(layer, 64)
    assert layer._packed is first

    layer.train()
    assert layer._packed is None
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    layer(normal(300, 1000)).square().mean().backward()
    layer.eval()
    check_layer(layer)
    before = layer._packed
    optimizer.step()
    check_layer(layer)
    assert layer._packed is not before

    layer.load_state_dict(tilesmith.nn.Linear(1000, 800, device="cuda").state_dict())
    check_layer(layer)
    layer.weight.data = normal(800, 1000)
    check_layer(layer)
    layer.cpu()
    layer.weight.data.mul_(2)
    layer.cuda()
    check_layer(layer)


def test_a_layer_follows_torchs_setting_of_the_accuracy(layer: tilesmith.nn.Linear) -> None:
    x = normal(300, 1000)
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        with torch.no_grad():
            torch.backends.cuda.matmul.fp32_precision = "tf32"
            layer(x)
            assert layer._packed is not None and layer._packed.accuracy == "tf32"
            torch.backends.cuda.matmul.fp32_precision = "ieee"
            check_layer(layer)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_a_captured_layer_follows_its_weight(layer: tilesmith.nn.Linear) -> None:
    x = normal(300, 1000)
    with torch.no_grad():
        layer(x)  # packs
        layer.train()(x)  # loads what is not packed
        layer.eval()(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = layer(x)
        layer.weight.copy_(normal(800, 1000))
        graph.replay()
        assert_as_exact_as_torch(result, x, layer.weight, layer.bias, activation="gelu")


def test_another_stream_reads_the_planes_when_they_are_there(layer: tilesmith.nn.Linear) -> None:
    x = normal(300, 1000)
    torch.cuda.synchronize()
    with torch.no_grad():
        torch.cuda._sleep(100_000_000)
        layer(x)
        with torch.cuda.stream(torch.cuda.Stream()):
            result = layer(x)
        torch.cuda.synchronize()
        assert_as_exact_as_torch(result, x, layer.weight, layer.bias, activation="gelu")


@pytest.mark.parametrize("columns", [2048, 2046, 2047])
@pytest.mark.parametrize(
    "configuration",
    [
        hopper.Configuration(128, 256, cluster=2),
        hopper.Configuration(128, 224, cluster=2),
        hopper.Configuration(128, 64),
        hopper.Configuration(64, 192),
        hopper.Configuration(64, 16),
    ],
    ids=str,
)
def test_residuals_that_are_read_by_lines(configuration: hopper.Configuration, columns: int) -> None:
    """Several tiles for every block: a residual is read while the results before it are still stored."""
    shapes = ((3999, 200), (columns, 200), (3999, columns))
    x, weight, residual = (normal(*shape, dtype=torch.bfloat16) for shape in shapes)
    epilogue = Epilogue(residual=residual)
    plan = hopper.plan(Problem.of(x, weight.T, epilogue=epilogue), device.installed(0), configuration)
    c = constants_of(plan.product.kernel, gemm.CommonConstants)
    assert c.residual_vector == (8 if columns == 2048 else 1)
    assert c.store_waits == (configuration.tile_m * configuration.tile_n >= 64 * 128)
    run = executor.compiled(plan, 0)
    results = []
    for _ in range(3):
        out = torch.full((3999, columns), torch.nan, dtype=torch.bfloat16, device="cuda")
        results.append(run(x, weight.T, out, None, epilogue))
    assert_as_exact_as_torch(results[0], x, weight, None, residual)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
