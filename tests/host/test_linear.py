"""`tilesmith.linear` and `tilesmith.nn.Linear` in PyTorch, on CPU tensors."""

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from seen import Seen
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torchs_linear import by_torch, ours

import tilesmith
from tilesmith.core.epilogue import ACTIVATIONS, Epilogue
from tilesmith.core.packed import PackedPair
from tilesmith.runtime import executor
from tilesmith.torch_ops import dispatch
from tilesmith.torch_ops import linear as op_linear
from tilesmith.torch_ops import matmul as op

Shape = tuple[int, ...]

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
EVERY_ACTIVATION = (None, *ACTIVATIONS)

# What is added: a bias or none, and a residual of some shape or none.
ADDED: list[tuple[bool, Shape | None]] = [(False, None), (True, None), (False, (3, 2)), (True, (3, 2)), (True, (1, 2))]

each_activation = pytest.mark.parametrize("activation", EVERY_ACTIVATION, ids=str)
each_addition = pytest.mark.parametrize(("has_bias", "residual_shape"), ADDED, ids=str)


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(i * s for i, s in enumerate(shape, 1)))
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


Arguments = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]


def arguments(
    has_bias: bool = True, residual_shape: Shape | None = (3, 2), dtype: torch.dtype = torch.float64, grad: bool = False
) -> Arguments:
    """x, weight, bias, residual."""
    return (
        random(3, 4, dtype=dtype).requires_grad_(grad),
        random(2, 4, dtype=dtype, seed=1).requires_grad_(grad),
        random(2, dtype=dtype, seed=2).requires_grad_(grad) if has_bias else None,
        None if residual_shape is None else random(*residual_shape, dtype=dtype, seed=3).requires_grad_(grad),
    )


def given(*tensors: torch.Tensor | None) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_addition
@each_activation
def test_values_are_torchs(
    activation: str | None, has_bias: bool, residual_shape: Shape | None, dtype: torch.dtype
) -> None:
    each = arguments(has_bias, residual_shape, dtype)
    result, expected = ours(*each, activation=activation), by_torch(*each, activation=activation)
    assert torch.equal(result, expected)
    assert (result.dtype, result.shape, result.requires_grad) == (dtype, (3, 2), False)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (5, 3, 4), (2, 1, 3, 4), (0, 4), (2, 0, 4)], ids=str)
def test_x_may_have_any_rank(shape: Shape) -> None:
    x, weight, bias = random(*shape), random(2, 4), random(2)
    for residual in (random(*shape[:-1], 2), random(2), random(1), random()):
        expected = by_torch(x, weight, bias, residual, activation="gelu")
        result = ours(x, weight, bias, residual, activation="gelu")
        assert result.shape == expected.shape
        torch.testing.assert_close(result, expected)


def test_no_features_leave_the_bias() -> None:
    result = ours(torch.ones(3, 0), torch.ones(2, 0), torch.tensor([1.0, -2.0]), torch.ones(3, 1), activation="relu")
    assert result.tolist() == [[2.0, 1.0]] * 3
    assert ours(torch.ones(3, 4), torch.ones(0, 4), torch.ones(0)).shape == (3, 0)


@pytest.mark.parametrize(
    ("x", "weight", "residual"),
    [
        (random(8, 6).T, random(10, 8), random(6, 10)),
        (random(6, 8), random(8, 10).T, random(6, 10)),
        (random(6, 8), random(10, 8), random(10, 6).T),
        (random(6, 16)[:, ::2], random(20, 8)[::2], random(6, 20)[:, ::2]),
    ],
    ids=["x transposed", "weight transposed", "residual transposed", "slices"],
)
def test_any_strides_give_a_contiguous_result(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> None:
    result = ours(x, weight, None, residual, activation="silu")
    torch.testing.assert_close(result, by_torch(x, weight, None, residual, activation="silu"))
    assert result.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_out_dtype_keeps_the_wider_sum(dtype: torch.dtype) -> None:
    x, weight, bias, residual = arguments(dtype=dtype)
    assert residual is not None
    wide = [t.float() for t in given(x, weight, bias, residual)]
    for some_bias in (bias, wide[2]):
        wider = residual.float()
        result = tilesmith.linear(x, weight, some_bias, activation="gelu", residual=wider, out_dtype=torch.float32)
        assert result.dtype == torch.float32
        assert torch.equal(result, by_torch(*wide, activation="gelu"))


def test_mixed_types_need_an_accuracy() -> None:
    x, weight, bias, residual = arguments(dtype=torch.float32)
    narrow = x.bfloat16()
    result = tilesmith.linear(narrow, weight, bias, residual=residual, accuracy="fp32")
    assert torch.equal(result, by_torch(narrow.float(), weight, bias, residual))
    with pytest.raises(RuntimeError, match="same dtype"):
        tilesmith.linear(narrow, weight, bias)


def test_a_negated_residual_is_added_with_its_sign() -> None:
    x, weight, bias, _ = arguments(dtype=torch.float32)
    z = torch.complex(random(3, 2, dtype=torch.float32), random(3, 2, dtype=torch.float32, seed=1))
    negated = z.conj().imag
    assert negated.is_neg()
    assert torch.equal(ours(x, weight, bias, negated), by_torch(x, weight, bias, -z.imag))


def test_inference_mode_gives_inference_tensors() -> None:
    each = arguments(grad=True)
    with torch.inference_mode():
        result = ours(*each, activation="relu")
    assert result.is_inference()
    assert torch.equal(result, by_torch(*each, activation="relu"))


def test_what_does_not_go_together_is_refused_by_name() -> None:
    x, weight, bias, residual = torch.ones(3, 4), torch.ones(2, 4), torch.ones(2), torch.ones(3, 2)
    wrong: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (ValueError, "'tanh'", (x, weight), {"activation": "tanh"}),
        (ValueError, "'exact'", (x, weight), {"accuracy": "exact"}),
        (TypeError, "'x' must be Tensor, not list", ([1.0], weight), {}),
        (TypeError, "'bias' must be Tensor, not float", (x, weight, 1.0), {}),
        (NotImplementedError, "weight has layout torch.sparse_coo", (x, weight.to_sparse()), {}),
        (RuntimeError, r"weight must be a matrix .* \[4\]", (x, weight[0]), {}),
        (RuntimeError, r"weight must be a matrix .* \[1, 2, 4\]", (x, weight[None]), {}),
        (RuntimeError, r"4 features .* \[3, 5\]", (torch.ones(3, 5), weight), {}),
        (RuntimeError, r"4 features .* \[\]", (torch.ones(()), weight), {}),
        (RuntimeError, r"bias must have shape \[2\], .* \[3\]", (x, weight, torch.ones(3)), {}),
        (RuntimeError, r"bias must have shape \[2\], .* \[1\]", (x, weight, torch.ones(1)), {}),
        (RuntimeError, r"bias must have shape \[2\], .* \[1, 2\]", (x, weight, bias[None]), {}),
        (RuntimeError, r"residual of shape \[4, 2\] .* \[3, 2\]", (x, weight), {"residual": torch.ones(4, 2)}),
        (RuntimeError, r"residual of shape \[1, 3, 2\]", (x, weight), {"residual": residual[None]}),
        (RuntimeError, "x and weight to have the same dtype", (x.double(), weight), {}),
        (RuntimeError, "bias to have the dtype of weight", (x, weight, bias.double()), {}),
        (RuntimeError, "residual to have the dtype of the result", (x, weight), {"residual": residual.half()}),
        (RuntimeError, "out_dtype torch.float64", (x, weight), {"out_dtype": torch.float64}),
        (NotImplementedError, "torch.int32", (x.int(), weight.int()), {}),
        (NotImplementedError, "torch.complex64", (x + 0j, weight + 0j), {}),
        (RuntimeError, "weight is on meta", (x, weight.to("meta")), {}),
        (RuntimeError, "residual is on meta", (x, weight), {"residual": residual.to("meta")}),
    ]
    for activation, (kind, message, positional, named) in itertools.product((None, "gelu"), wrong):
        for grad in (False, True):
            first = positional[0]
            if isinstance(first, torch.Tensor) and first.is_floating_point():
                positional = (first.detach().requires_grad_(grad), *positional[1:])
            with pytest.raises(kind, match=message):
                tilesmith.linear(*positional, **{"activation": activation} | named)


def test_the_operator_refuses_the_same() -> None:
    x, weight = torch.ones(3, 4), torch.ones(2, 4)
    with pytest.raises(ValueError, match="'tanh'"):
        op_linear.linear(x, weight, activation="tanh")
    with pytest.raises(RuntimeError, match="residual of shape"):
        op_linear.linear(x, weight, None, torch.ones(7))
    with pytest.raises(RuntimeError, match="same dtype"):
        op_linear.linear(x, weight.double())


@each_addition
@each_activation
def test_gradients_of_first_and_second_order_are_right(
    activation: str | None, has_bias: bool, residual_shape: Shape | None
) -> None:
    x, weight, bias, residual = arguments(has_bias, residual_shape, grad=True)

    def call(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def of_given(x: torch.Tensor, weight: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            bias, residual = (*rest, None)[:2] if has_bias else (None, *rest, None)[:2]
            return function(x, weight, bias, residual, activation=activation)

        return of_given

    for function in (ours, op_linear.linear):
        assert gradcheck(call(function), given(x, weight, bias, residual), fast_mode=True)
        assert gradgradcheck(call(function), given(x, weight, bias, residual), fast_mode=True)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (5, 3, 4), (0, 4)], ids=str)
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_gradients_are_torchs_for_each_argument_alone(activation: str | None, shape: Shape) -> None:
    tensors = (random(*shape), random(2, 4), random(2), random(1))
    for needed in itertools.product([False, True], repeat=4):
        if not any(needed):
            continue
        for function in (ours, op_linear.linear):
            gradients = []
            for each in (function, by_torch):
                leaves = [t.detach().requires_grad_(need) for t, need in zip(tensors, needed, strict=True)]
                result = each(*leaves, activation=activation)
                result.backward(torch.arange(1.0, result.numel() + 1).double().reshape(result.shape))
                gradients.append([leaf.grad for leaf in leaves])
            for found, expected in zip(*gradients, strict=True):
                assert (found is None) == (expected is None)
                if found is not None:
                    torch.testing.assert_close(found, expected)
                    assert found.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_keep_the_arguments_types_when_the_result_is_wider(dtype: torch.dtype) -> None:
    x, weight, bias, residual = arguments(residual_shape=None, dtype=dtype, grad=True)
    for function in (tilesmith.linear, op_linear.linear):
        result = function(x, weight, bias, activation="silu", out_dtype=torch.float32)
        gradients = torch.autograd.grad(result.sum(), given(x, weight, bias, residual))
        wide = [t.detach().float().requires_grad_() for t in given(x, weight, bias)]
        expected = torch.autograd.grad(by_torch(*wide, activation="silu").sum(), wide)
        assert {gradient.dtype for gradient in gradients} == {dtype}
        # The gradient of the sums is rounded before the products.
        torch.testing.assert_close(gradients, tuple(e.to(dtype) for e in expected), rtol=0.02, atol=0.02)


def products_of(seen: Seen) -> list[tuple[str, str | None]]:
    """What is multiplied, and by which activation it is followed."""
    own = (call for call in seen.calls if call[0].startswith("tilesmith."))
    return [(name.split(".")[1], options.get("activation")) for name, options in own]


def test_sums_are_kept_for_the_gradient_and_not_computed_again() -> None:
    each = arguments(grad=True)
    with Seen() as forward:
        result = ours(*each, activation="gelu")
    assert products_of(forward) == [("linear", None)]
    with Seen() as backward:
        result.sum().backward()
    assert products_of(backward) == [("matmul", None), ("matmul", None)]


def test_one_operator_does_all_where_no_gradient_needs_the_sums() -> None:
    x, weight, bias, residual = arguments()
    assert residual is not None
    residual.requires_grad_()
    with Seen() as seen:
        result = ours(x, weight, bias, residual, activation="gelu")
        result.sum().backward()
        with torch.no_grad():
            ours(*arguments(grad=True), activation="gelu")
    assert products_of(seen) == [("linear", "gelu"), ("linear", "gelu")]
    assert residual.grad is not None and torch.equal(residual.grad, torch.ones(3, 2, dtype=torch.float64))


def test_a_frozen_weight_does_not_keep_x() -> None:
    x, weight, bias, _ = arguments()
    kept: list[torch.Tensor] = []
    x.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        ours(x, weight, bias)
    assert [t.shape for t in kept] == [weight.shape]


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_activation_checkpointing_gives_the_same_gradients(activation: str | None) -> None:
    gradients = []
    for function in (partial(checkpoint, ours, use_reentrant=False), ours):
        each = arguments(grad=True)
        function(*each, activation=activation).square().sum().backward()
        gradients.append([t.grad for t in given(*each)])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@each_addition
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_the_operator_passes_opcheck(
    activation: str | None, has_bias: bool, residual_shape: Shape | None, grad: bool
) -> None:
    each = arguments(has_bias, residual_shape, torch.float32, grad)
    assert set(torch.library.opcheck(op_linear.linear, each, {"activation": activation}).values()) == {"SUCCESS"}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_operator_passes_opcheck_with_every_argument(activation: str) -> None:
    x = random(2, 3, 4, dtype=torch.bfloat16).requires_grad_()
    weight, bias = random(5, 4, dtype=torch.bfloat16).requires_grad_(), random(5, dtype=torch.bfloat16)
    options = {"activation": activation, "accuracy": "ieee", "out_dtype": torch.float32}
    results = torch.library.opcheck(op_linear.linear, (x, weight, bias, random(3, 5, dtype=torch.float32)), options)
    assert set(results.values()) == {"SUCCESS"}


@each_activation
def test_forward_mode_gives_torchs_tangents(activation: str | None) -> None:
    primals = given(*arguments())
    tangents = [torch.ones_like(p) * i for i, p in enumerate(primals, 1)]
    torch.testing.assert_close(
        torch.func.jvp(lambda *each: ours(*each, activation=activation), tuple(primals), tuple(tangents)),
        torch.func.jvp(lambda *each: by_torch(*each, activation=activation), tuple(primals), tuple(tangents)),
    )
    with forward_ad.dual_level():
        for at in range(4):
            each: list[Any] = list(primals)
            each[at] = forward_ad.make_dual(primals[at], tangents[at])
            torch.testing.assert_close(
                forward_ad.unpack_dual(ours(*each, activation=activation)),
                forward_ad.unpack_dual(by_torch(*each, activation=activation)),
            )


def test_the_operator_refuses_forward_mode() -> None:
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=r"call tilesmith\.linear"):
        op_linear.linear(forward_ad.make_dual(torch.ones(3, 4), torch.ones(3, 4)), torch.ones(2, 4))


@pytest.mark.parametrize(
    "transform", [torch.func.grad, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("activation", [None, "gelu_tanh"])
def test_functional_transforms_give_what_torch_gives(transform: Callable[..., Any], activation: str | None) -> None:
    x, weight, bias, residual = arguments()

    def loss(function: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda w: function(x, w, bias, residual, activation=activation).square().sum()

    torch.testing.assert_close(transform(loss(ours))(weight), transform(loss(by_torch))(weight))


def test_gradients_per_sample_are_torchs() -> None:
    weight, bias, x = random(2, 4), random(2), random(5, 3, 4)

    def per_sample(function: Callable[..., torch.Tensor]) -> Any:
        def loss(w: torch.Tensor, b: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
            return function(sample, w, b, activation="silu").square().sum()

        return torch.vmap(torch.func.grad(loss, (0, 1)), (None, None, 0))(weight, bias, x)

    torch.testing.assert_close(per_sample(ours), per_sample(by_torch))


IN_DIMS = [
    (0, None, None, None),
    (1, None, None, 0),
    (None, 0, None, None),
    (0, 1, -1, 1),
    (0, 0, None, 0),
    (None, None, 0, None),
    (None, None, None, 1),
]


@pytest.mark.parametrize("in_dims", IN_DIMS, ids=str)
@pytest.mark.parametrize("shape", [(4,), (3, 4), (5, 3, 4)], ids=str)
def test_vmap_is_torchs(shape: Shape, in_dims: tuple[int | None, ...]) -> None:
    def with_mapped(shape: Shape, dim: int | None) -> torch.Tensor:
        return random(*shape) if dim is None else random(6, *shape).movedim(0, dim)

    shapes = (shape, (2, 4), (2,), (1, 2)[-len(shape) :])
    tensors = [with_mapped(s, dim) for s, dim in zip(shapes, in_dims, strict=True)]
    expected = torch.vmap(lambda *each: by_torch(*each, activation="gelu"), in_dims)(*tensors)
    by_function = torch.vmap(lambda *each: ours(*each, activation="gelu"), in_dims)(*tensors)
    by_operator = torch.vmap(lambda *each: op_linear.linear(*each, activation="gelu"), in_dims)(*tensors)
    torch.testing.assert_close(by_function, expected)
    torch.testing.assert_close(by_operator, expected)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_compiled_is_eager_with_gradients(activation: str | None, backend: str) -> None:
    def loss(*each: torch.Tensor) -> torch.Tensor:
        return ours(*each, activation=activation).square().sum()

    gradients = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend=backend, dynamic=False)):
        each = given(*arguments(grad=True))
        function(*each).backward()
        gradients.append([t.grad for t in each])
    torch.testing.assert_close(*gradients)


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_inference_is_one_operator_for_all_shapes() -> None:
    graphs: list[list[str]] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    activated = partial(ours, activation="gelu")
    function = torch.compile(activated, fullgraph=True, backend=backend, dynamic=True)
    for rows, columns, depth in [(3, 4, 5), (6, 7, 8), (9, 10, 11)]:
        each = (random(rows, depth), random(columns, depth), random(columns), random(rows, columns))
        torch.testing.assert_close(function(*each), by_torch(*each, activation="gelu"))
    assert graphs == [["tilesmith.linear.default"]]


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_under_autocast_is_eager() -> None:
    each = arguments(dtype=torch.float32)
    function = torch.compile(lambda *each: ours(*each, activation="relu"), fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        result, expected = function(*each), ours(*each, activation="relu")
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, expected)


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_vmap_is_eager() -> None:
    x, weight, bias, residual = arguments()
    function = torch.compile(torch.vmap(ours, (0, None, None, 0)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(function(x, weight, bias, residual), by_torch(x, weight, bias, residual))


@pytest.mark.usefixtures("fresh_dynamo")
def test_an_exported_layer_holds_the_operator() -> None:
    layer = tilesmith.nn.Linear(4, 2, activation="gelu").eval()
    with torch.no_grad():
        exported = torch.export.export(layer, (torch.ones(3, 4), torch.ones(3, 2)))
    targets = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert targets == ["tilesmith.linear.default"]
    x, residual = random(3, 4, dtype=torch.float32), random(3, 2, dtype=torch.float32)
    assert torch.equal(exported.module()(x, residual), layer(input=x, residual=residual))


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
def test_autocast_casts_as_torchs_linear(dtype: torch.dtype, target: torch.dtype, grad: bool) -> None:
    x, weight, bias, _ = arguments(residual_shape=None, dtype=dtype, grad=grad)
    for activation in (None, "relu"):
        with torch.autocast("cpu", target):
            result, expected = (
                ours(x, weight, bias, None, activation=activation),
                by_torch(x, weight, bias, None, activation=activation),
            )
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected)


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
def test_autocast_casts_the_residual_to_the_type_of_the_result(activation: str | None, grad: bool) -> None:
    x, weight, bias, residual = arguments(dtype=torch.float32, grad=grad)
    assert residual is not None
    for out_dtype in (None, torch.float32):
        with torch.autocast("cpu", torch.bfloat16):
            result = tilesmith.linear(x, weight, bias, activation=activation, residual=residual, out_dtype=out_dtype)
        dtype = out_dtype or torch.bfloat16
        narrow = [t.bfloat16().to(dtype) for t in given(x, weight, bias)] + [residual.to(dtype)]
        assert result.dtype == dtype
        assert torch.equal(result, by_torch(*narrow, activation=activation))
        if grad:
            (gradient,) = torch.autograd.grad(result.float().sum(), residual)
            assert torch.equal(gradient, torch.ones(3, 2))


def test_transforms_under_autocast_give_the_same() -> None:
    each = arguments(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        mapped = torch.vmap(lambda x: ours(x, *each[1:3], activation="relu"))(each[0])
        assert mapped.dtype == torch.bfloat16
        torch.testing.assert_close(mapped, ours(*each[:3], activation="relu"))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (5, 3, 4)], ids=str)
def test_fake_and_meta_tensors_give_shape_strides_and_type(shape: Shape) -> None:
    for dtype, out_dtype in ((torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, torch.float32)):
        result = {}
        with FakeTensorMode():
            x, weight, bias = torch.ones(shape, dtype=dtype), torch.ones(2, 4, dtype=dtype), torch.ones(2, dtype=dtype)
            result["cpu"] = tilesmith.linear(x, weight, bias, activation="gelu", out_dtype=out_dtype)
        meta = [torch.ones(s, dtype=dtype, device="meta") for s in (shape, (2, 4), (2,))]
        result["meta"] = tilesmith.linear(*meta, activation="gelu", out_dtype=out_dtype)
        for device, tensor in result.items():
            assert (tensor.shape, tensor.dtype) == ((*shape[:-1], 2), out_dtype or dtype)
            assert tensor.is_contiguous()
            assert tensor.device.type == device


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_a_packed_weight_is_the_transpose_of_the_weight(activation: str | None) -> None:
    x, weight, bias, residual = arguments(dtype=torch.float32)
    packed = tilesmith.pack(weight.mT)
    expected = by_torch(x, weight, bias, residual, activation=activation)
    assert torch.equal(ours(x, packed, bias, residual, activation=activation), expected)  # type: ignore[arg-type]
    leaves = [t.detach().requires_grad_() for t in given(x, bias, residual)]
    found = ours(leaves[0], packed, leaves[1], leaves[2], activation=activation)  # type: ignore[arg-type]
    expected = by_torch(leaves[0], weight, leaves[1], leaves[2], activation=activation)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), leaves), torch.autograd.grad(expected.sum(), leaves))


def test_a_packed_weight_that_does_not_fit_is_refused() -> None:
    x, weight, packed = torch.ones(3, 4), torch.ones(2, 4), tilesmith.pack(torch.ones(4, 2), accuracy="fp32")
    for message, own_x, own_packed, accuracy in (
        ("other side", x, tilesmith.pack(weight, first=True), None),
        ("packed from a matrix", x, tilesmith.pack(torch.ones(4)), None),
        ("4 features", torch.ones(3, 2), packed, None),
        ("accuracy='fp32'", x, packed, "ieee"),
        ("same dtype", x.half(), packed, None),
    ):
        with pytest.raises(RuntimeError, match=message):
            tilesmith.linear(own_x, own_packed, accuracy=accuracy)


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_code_says_that_it_cannot_have_a_packed_weight() -> None:
    packed = tilesmith.pack(torch.ones(4, 2))
    compiled = torch.compile(lambda x: tilesmith.linear(x, packed), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"does not work inside of torch\.compile"):
        compiled(torch.ones(3, 4))


def layer_like(torchs: torch.nn.Linear, **options: Any) -> tilesmith.nn.Linear:
    layer = tilesmith.nn.Linear(torchs.in_features, torchs.out_features, torchs.bias is not None, **options)
    layer.load_state_dict(torchs.state_dict())
    return layer


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_has_torchs_parameters_and_values(bias: bool) -> None:
    torch.manual_seed(7)
    torchs = torch.nn.Linear(4, 2, bias)
    torch.manual_seed(7)
    layer = tilesmith.nn.Linear(4, 2, bias)
    assert isinstance(layer, torch.nn.Linear)
    assert list(layer.state_dict()) == list(torchs.state_dict())
    for name, value in layer.state_dict().items():
        assert torch.equal(value, torchs.state_dict()[name])
    x = random(3, 4, dtype=torch.float32)
    assert torch.equal(layer(x), torchs(x))
    back = torch.nn.Linear(4, 2, bias)
    back.load_state_dict(layer.state_dict())
    assert torch.equal(back.weight, torchs.weight)


def test_a_layer_is_made_with_a_device_a_type_an_activation_and_an_accuracy() -> None:
    layer = tilesmith.nn.Linear(4, 2, False, "meta", torch.bfloat16, activation="silu", accuracy="tf32")
    assert (layer.weight.device.type, layer.weight.dtype) == ("meta", torch.bfloat16)
    assert list(layer.state_dict()) == ["weight"]
    assert repr(layer) == "Linear(in_features=4, out_features=2, bias=False, activation='silu', accuracy='tf32')"
    assert repr(tilesmith.nn.Linear(4, 2)) == repr(torch.nn.Linear(4, 2))
    with pytest.raises(ValueError, match="'tanh'"):
        tilesmith.nn.Linear(4, 2, activation="tanh")
    with pytest.raises(ValueError, match="'exact'"):
        tilesmith.nn.Linear(4, 2, accuracy="exact")


@each_activation
def test_a_layer_adds_its_activation_and_a_residual(activation: str | None) -> None:
    torchs = torch.nn.Linear(4, 2)
    layer = layer_like(torchs, activation=activation)
    x, residual = random(3, 4, dtype=torch.float32), random(3, 2, dtype=torch.float32)
    expected = by_torch(x, torchs.weight, torchs.bias, residual, activation=activation)
    torch.testing.assert_close(layer(x, residual), expected)
    torch.testing.assert_close(
        torch.autograd.grad(layer(x, residual=residual).sum(), list(layer.parameters())),
        torch.autograd.grad(expected.sum(), list(torchs.parameters())),
    )


@pytest.mark.parametrize("bias", [True, False])
def test_from_torch_shares_the_parameters_and_the_mode(bias: bool) -> None:
    torchs = torch.nn.Linear(4, 2, bias, dtype=torch.float64).eval()
    generator = torch.get_rng_state()
    layer = tilesmith.nn.Linear.from_torch(torchs, activation="relu", accuracy="ieee")
    assert torch.equal(torch.get_rng_state(), generator)
    assert layer.weight is torchs.weight
    assert layer.bias is torchs.bias
    assert (layer.activation, layer.accuracy, layer.training) == ("relu", "ieee", False)
    x = random(3, 4)
    assert torch.equal(layer(x), torchs(x).relu())
    layer(x).sum().backward()
    assert torchs.weight.grad is not None


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_layer_is_the_layer(training: bool) -> None:
    layer = tilesmith.nn.Linear(4, 2, activation="gelu").train(training)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = random(3, 4, dtype=torch.float32)
    torch.testing.assert_close(compiled(x), layer(x))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))


def test_functional_calls_use_the_parameters_that_they_bring() -> None:
    layer = tilesmith.nn.Linear(4, 2).eval()
    x = random(3, 4, dtype=torch.float32)
    weights = random(5, 2, 4, dtype=torch.float32)

    def call(weight: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(layer, {"weight": weight}, (x,))
        return result

    with torch.no_grad():
        expected = torch.stack([functional.linear(x, weight, layer.bias) for weight in weights])
        torch.testing.assert_close(torch.vmap(call)(weights), expected)


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The weights that were packed. A product with a packed one is made of what was packed, not of the tensor. What
    stands for the GPU takes CPU tensors for plain ones."""
    made: list[torch.Tensor] = []

    def is_plain(a: Any, b: Any) -> bool:
        return (
            all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in (a, b))
            and not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad))
            and not torch._C._is_any_autocast_enabled()
            and torch._C._functorch.peek_interpreter_stack() is None
        )

    def pack(tensor: torch.Tensor, accuracy: str, *, first: bool) -> torch.Tensor:
        assert not first
        made.append(tensor.clone())
        return made[-1]

    def multiply(
        a: torch.Tensor,
        b: torch.Tensor,
        accuracy: str | None = None,
        out_dtype: torch.dtype | None = None,
        out: None = None,
        packed: PackedPair | None = None,
        epilogue: Epilogue | None = None,
    ) -> torch.Tensor:
        if packed is not None:
            assert packed[1] is not None
            b = packed[1]
        bias, activation, residual, *_ = epilogue or Epilogue()
        return by_torch(a, b.mT, bias, residual, activation=activation)

    monkeypatch.setattr(dispatch, "is_plain", is_plain)
    monkeypatch.setattr(executor, "pack", pack)
    monkeypatch.setattr(op_linear, "multiply", multiply)
    monkeypatch.setattr(op, "multiply", multiply)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return made


def check_layer(layer: tilesmith.nn.Linear) -> None:
    x = random(3, 4, dtype=torch.float32)
    torch.testing.assert_close(layer(x), by_torch(x, layer.weight, layer.bias, None, activation=layer.activation))


def test_a_layer_packs_once_in_eval_mode(packings: list[torch.Tensor]) -> None:
    layer = tilesmith.nn.Linear(4, 2, activation="gelu").eval()
    with torch.no_grad():
        for _ in range(3):
            check_layer(layer)
    assert len(packings) == 1
    assert torch.equal(packings[0], layer.weight.detach().mT)
    with torch.inference_mode():
        check_layer(layer)
    assert len(packings) == 1 and layer._packed is not None
    layer.train()
    assert layer._packed is None  # its memory is given back


def test_a_frozen_layer_packs_and_hands_on_the_gradient_of_x(packings: list[torch.Tensor]) -> None:
    layer = tilesmith.nn.Linear(4, 2, activation="gelu").eval().requires_grad_(False)
    x = random(3, 4, dtype=torch.float32).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x).sum(), x)
    (expected,) = torch.autograd.grad(by_torch(x, layer.weight, layer.bias, None, activation="gelu").sum(), x)
    assert len(packings) == 1
    torch.testing.assert_close(gradient, expected)


CHANGES = (
    *("by an optimizer", "in place", "in inference mode", "by a state dict", "by an assigned state dict"),
    *("the parameter", "its data", "its strides", "behind torch's back before eval", "the type and back"),
)


def change(layer: tilesmith.nn.Linear, how: str) -> None:
    match how:
        case "by an optimizer":
            layer.weight.grad = torch.ones_like(layer.weight)
            torch.optim.SGD(layer.parameters(), lr=0.5).step()
        case "in place":
            with torch.no_grad():
                layer.weight[0].mul_(3)
        case "in inference mode":
            with torch.inference_mode():
                layer.weight.mul_(3)
        case "by a state dict" | "by an assigned state dict":
            layer.load_state_dict(torch.nn.Linear(4, 2).state_dict(), assign="assigned" in how)
        case "the parameter":
            layer.weight = torch.nn.Parameter(random(2, 4, dtype=torch.float32))
        case "its data":
            layer.weight.data = random(2, 4, dtype=torch.float32)
        case "its strides":
            layer.weight.data = layer.weight.data.as_strided((2, 4), (1, 2))
        case "behind torch's back before eval":
            layer.weight.data.mul_(3)
            layer.eval()
        case "the type and back":
            layer.double()
            layer.weight.data.mul_(3)
            layer.float()


@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_weight_is_packed_anew(packings: list[torch.Tensor], how: str) -> None:
    layer = tilesmith.nn.Linear(4, 2).eval()
    with torch.no_grad():
        check_layer(layer)
    before = layer.weight.detach().clone()
    change(layer, how)
    assert not torch.equal(layer.weight, before)
    with torch.no_grad():
        check_layer(layer)
        check_layer(layer)
    assert len(packings) == 2


def test_a_changed_setting_of_torchs_accuracy_is_followed(
    packings: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, exact = tilesmith.nn.Linear(4, 2).eval(), tilesmith.nn.Linear(4, 2, accuracy="fp32").eval()
    precision = torch.backends.cuda.matmul.fp32_precision
    try:
        for setting in ("ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = setting
            with torch.no_grad():
                check_layer(layer)
                check_layer(exact)
    finally:
        torch.backends.cuda.matmul.fp32_precision = precision
    assert len(packings) == 3


@pytest.mark.usefixtures("fresh_dynamo")
def test_nothing_is_packed_where_it_could_go_stale_or_be_of_no_use(packings: list[torch.Tensor]) -> None:
    x = random(3, 4, dtype=torch.float32)
    layer = tilesmith.nn.Linear(4, 2)
    with torch.no_grad():
        layer(x)  # in training
    layer.eval()
    layer(x)  # with a gradient for the weight
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            layer(x)
        torch.vmap(layer)(x)
        torch.func.functional_call(layer, {"weight": torch.ones(2, 4)}, (x,))
        tilesmith.nn.Linear(4, 2, dtype=torch.bfloat16).eval()(x.bfloat16())
        sharded = tilesmith.nn.Linear(4, 2).eval()
        sharded.__dict__["_is_fsdp_managed_module"] = True  # as FSDP does
        sharded(x)
        torch.compile(tilesmith.nn.Linear(4, 2).eval(), fullgraph=True, backend="eager")(x)
    with torch.inference_mode():
        tilesmith.nn.Linear(4, 2).eval()(x)
    assert packings == []


def test_nothing_is_packed_while_a_graph_is_captured(
    packings: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = tilesmith.nn.Linear(4, 2).eval()
    with torch.no_grad():
        check_layer(layer)
        packings[0].zero_()  # who reads it is found out
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        check_layer(layer)


def test_what_was_packed_is_neither_saved_nor_copied(packings: list[torch.Tensor]) -> None:
    layer = tilesmith.nn.Linear(4, 2, activation="gelu").eval()
    with torch.no_grad():
        check_layer(layer)
    assert list(layer.state_dict()) == ["weight", "bias"]
    torch.save(layer, buffer := io.BytesIO())
    loaded = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    for other in (copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        assert other._packed is None
        assert repr(other) == repr(layer)
        assert torch.equal(other.weight, layer.weight)
        with torch.no_grad():
            check_layer(other)
    assert layer._packed is not None
