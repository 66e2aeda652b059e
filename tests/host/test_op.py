"""The operators in PyTorch: autograd, vmap, compile, autocast, fake tensors, on CPU tensors."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from operator_arguments import OF_MATMUL, OF_MATMUL_OUT, arguments, arguments_with_out
from seen import Seen
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import tilesmith
from tilesmith.core.problem import OUT_DTYPES
from tilesmith.torch_ops import matmul as op

Shape = tuple[int, ...]

# Every combination of ranks that takes another way through broadcasting and its gradients.
PAIRS: list[tuple[Shape, Shape]] = [
    *(((4,), (4,)), ((4,), (4, 2)), ((3, 4), (4,)), ((3, 4), (4, 2)), ((4,), (5, 4, 2))),
    *(((5, 3, 4), (4,)), ((5, 3, 4), (4, 2)), ((3, 4), (5, 4, 2)), ((5, 3, 4), (5, 4, 2))),
    *(((5, 3, 4), (1, 4, 2)), ((1, 3, 4), (5, 4, 2)), ((2, 1, 3, 4), (1, 5, 4, 2)), ((2, 5, 3, 4), (5, 4, 2))),
    *(((2, 5, 3, 4), (4, 2)), ((2, 1, 1, 4), (2, 5, 4, 1)), ((2, 5, 1, 4), (4,))),
]
FEW_PAIRS = [PAIRS[i] for i in (0, 3, 4, 6, 11)]


def shapes_named(pairs: list[tuple[Shape, Shape]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("a", "b"), pairs, ids=lambda s: "x".join(map(str, s)))


def random(shape: Shape, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(i * s for i, s in enumerate(shape, 1)))
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, generator=generator)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype, generator=generator)


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@shapes_named(PAIRS)
def test_matmul_passes_opcheck(a: Shape, b: Shape, grad: bool) -> None:
    operands = (random(a).requires_grad_(grad), random(b, seed=1).requires_grad_(grad))
    assert set(torch.library.opcheck(op.matmul, operands).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", OF_MATMUL)
def test_matmul_passes_opcheck_with_arguments_of_every_kind(name: str) -> None:
    operands, options = arguments(name, "cpu")
    assert set(torch.library.opcheck(op.matmul, operands, options).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", OF_MATMUL_OUT)
def test_matmul_out_passes_opcheck_with_arguments_of_every_kind(name: str) -> None:
    operands, options = arguments_with_out(name, "cpu")
    assert set(torch.library.opcheck(op.matmul_out, operands, options).values()) == {"SUCCESS"}


@pytest.mark.usefixtures("emulator_cache")
def test_the_emulated_operators_pass_opcheck() -> None:
    with tilesmith.emulate():
        operands, options = arguments("fp32", "cpu")
        assert set(torch.library.opcheck(op.matmul, operands, options).values()) == {"SUCCESS"}
        operands, options = arguments_with_out("transposed", "cpu")
        assert set(torch.library.opcheck(op.matmul_out, operands, options).values()) == {"SUCCESS"}


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@shapes_named(FEW_PAIRS)
def test_a_cpu_product_is_torchs(a: Shape, b: Shape, dtype: torch.dtype) -> None:
    x, y = random(a, dtype), random(b, dtype, seed=1)
    expected = torch.matmul(x, y)
    result = tilesmith.matmul(x, y)
    assert torch.equal(result, expected)
    assert (result.dtype, result.device, result.requires_grad) == (expected.dtype, expected.device, False)
    out = torch.empty_like(expected)
    assert tilesmith.matmul(x, y, out=out) is out
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("dtype", "out_dtype"), [(d, o) for d, results in OUT_DTYPES.items() for o in results], ids=str
)
def test_out_dtype_keeps_the_wider_sum(dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    x, y = random((3, 40), dtype), random((40, 5), dtype, seed=1)
    expected = torch.matmul(x.to(out_dtype), y.to(out_dtype))
    result = tilesmith.matmul(x, y, out_dtype=out_dtype)
    assert result.dtype == out_dtype
    assert torch.equal(result, expected)
    out = torch.zeros(3, 5, dtype=out_dtype)
    tilesmith.matmul(x, y, out_dtype=out_dtype, out=out)
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("a", "b"),
    [((0, 3), (3, 4)), ((3, 0), (0, 4)), ((3, 4), (4, 0)), ((0, 3, 4), (4, 2)), ((0,), (0,)), ((0,), (0, 3))],
)
def test_empty_operands_give_what_torch_gives(a: Shape, b: Shape) -> None:
    expected = torch.matmul(torch.ones(a), torch.ones(b))
    assert torch.equal(tilesmith.matmul(torch.ones(a), torch.ones(b)), expected)
    out = torch.full(expected.shape, 9.0)
    tilesmith.matmul(torch.ones(a), torch.ones(b), out=out)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("strides", [(8, 1), (1, 3), (20, 2)])
def test_out_may_have_any_strides_and_nothing_beside_it_is_written(strides: tuple[int, int]) -> None:
    a, b = random((3, 5)), random((5, 8), seed=1)
    storage = torch.full((64,), 9.0)
    out = storage.as_strided((3, 8), strides)
    tilesmith.matmul(a, b, out=out)
    assert torch.equal(out, torch.matmul(a, b))
    out.fill_(9.0)
    assert bool((storage == 9).all())


def test_out_may_be_an_operand() -> None:
    a, b = random((4, 4)), random((4, 4), seed=1)
    expected = torch.matmul(a, b)
    tilesmith.matmul(a, b, out=b)
    assert torch.equal(b, expected)


def test_a_negated_view_is_multiplied_with_its_sign() -> None:
    x = torch.complex(random((3, 4)), random((3, 4), seed=1))
    negated, y = x.conj().imag, random((4, 2))
    assert negated.is_neg()
    assert torch.equal(tilesmith.matmul(negated, y), torch.matmul(-x.imag, y))
    assert torch.equal(tilesmith.matmul(y.T, negated.T), torch.matmul(y.T, -x.imag.T))
    out = torch.empty(3, 2)
    assert torch.equal(tilesmith.matmul(negated, y, out=out), torch.matmul(-x.imag, y))


@pytest.mark.parametrize("grads", itertools.product([False, True], repeat=2))
def test_the_result_requires_grad_where_torchs_does(grads: tuple[bool, bool]) -> None:
    a, b = random((3, 4)).requires_grad_(grads[0]), random((4, 2)).requires_grad_(grads[1])
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            ours, torchs = tilesmith.matmul(a, b), torch.matmul(a, b)
        assert ours.requires_grad == torchs.requires_grad
        assert ours.is_inference() == torchs.is_inference()
        assert ours.is_leaf == torchs.is_leaf


def test_parameters_give_a_plain_tensor() -> None:
    result = tilesmith.matmul(torch.nn.Parameter(random((3, 4))), torch.nn.Parameter(random((4, 2))))
    assert type(result) is torch.Tensor
    assert result.requires_grad


def operands64(a: Shape, b: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    return random(a, torch.float64).requires_grad_(), random(b, torch.float64, seed=1).requires_grad_()


@shapes_named(PAIRS)
def test_gradients_of_first_and_second_order_are_right(a: Shape, b: Shape) -> None:
    assert gradcheck(tilesmith.matmul, operands64(a, b), fast_mode=True)
    assert gradgradcheck(tilesmith.matmul, operands64(a, b), fast_mode=True)


@shapes_named(PAIRS)
def test_gradients_are_torchs_for_each_operand_alone(a: Shape, b: Shape) -> None:
    for needs in ((True, True), (True, False), (False, True)):
        grads = []
        for multiply in (tilesmith.matmul, torch.matmul):
            x, y = (t.detach().requires_grad_(need) for t, need in zip(operands64(a, b), needs, strict=True))
            product = multiply(x, y)
            product.backward(torch.arange(1.0, product.numel() + 1, dtype=torch.float64).reshape(product.shape))
            grads.append((x.grad, y.grad))
        for ours, torchs in zip(*grads, strict=True):
            assert (ours is None) == (torchs is None)
            if ours is not None:
                assert ours.shape == torchs.shape
                torch.testing.assert_close(ours, torchs)


def test_gradients_keep_the_operands_type_when_the_result_is_wider() -> None:
    a, b = random((3, 4), torch.bfloat16).requires_grad_(), random((4, 2), torch.bfloat16).requires_grad_()
    tilesmith.matmul(a, b, out_dtype=torch.float32).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    assert (a.grad.dtype, b.grad.dtype) == (torch.bfloat16, torch.bfloat16)
    torch.testing.assert_close(a.grad, b.detach().sum(1).expand(3, 4))


@shapes_named(PAIRS)
def test_forward_mode_gives_torchs_tangent(a: Shape, b: Shape) -> None:
    x, y = (t.detach() for t in operands64(a, b))
    dx, dy = random(a, torch.float64, seed=2), random(b, torch.float64, seed=3)
    found, expected = (torch.func.jvp(multiply, (x, y), (dx, dy)) for multiply in (tilesmith.matmul, torch.matmul))
    torch.testing.assert_close(found, expected)
    with forward_ad.dual_level():
        for operands in ((forward_ad.make_dual(x, dx), y), (x, forward_ad.make_dual(y, dy))):
            ours = forward_ad.unpack_dual(tilesmith.matmul(*operands))
            torchs = forward_ad.unpack_dual(torch.matmul(*operands))
            assert torchs.tangent is not None
            torch.testing.assert_close(ours, torchs)
        assert forward_ad.unpack_dual(tilesmith.matmul(x, y)).tangent is None


def test_forward_mode_keeps_the_wider_type_of_the_result() -> None:
    x, dx = random((3, 4), torch.bfloat16), random((3, 4), torch.bfloat16, seed=1)
    tangent = torch.func.jvp(lambda t: tilesmith.matmul(t, x.T, out_dtype=torch.float32), (x,), (dx,))[1]
    assert tangent.dtype == torch.float32
    assert torch.equal(tangent, torch.matmul(dx.float(), x.T.float()))


def squares(multiply: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda w, x: multiply(x, w).square().sum()


@pytest.mark.parametrize(
    "transform", [torch.func.grad, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)], ids=str)
def test_functional_transforms_give_what_torch_gives(transform: Callable[..., Any], shape: Shape) -> None:
    w, x = random((4, 2), torch.float64), random(shape, torch.float64, seed=1)
    found, expected = (transform(squares(multiply))(w, x) for multiply in (tilesmith.matmul, torch.matmul))
    torch.testing.assert_close(found, expected, check_stride=False)


def test_gradients_per_sample_are_torchs() -> None:
    w, x = random((4, 2), torch.float64), random((5, 3, 4), torch.float64, seed=1)

    def per_sample(multiply: Callable[..., torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = torch.vmap(torch.func.grad(squares(multiply)), (None, 0))(w, x)
        return result

    assert per_sample(tilesmith.matmul).shape == (5, 4, 2)
    torch.testing.assert_close(per_sample(tilesmith.matmul), per_sample(torch.matmul))


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (1, 0), (0, 1), (-1, -1), (1, None), (None, -1)])
@shapes_named(PAIRS)
def test_vmap_is_torchs(a: Shape, b: Shape, in_dims: tuple[int | None, int | None]) -> None:
    def with_mapped(shape: Shape, dim: int | None, seed: int) -> torch.Tensor:
        x = random((6, *shape), seed=seed)
        return x[0] if dim is None else x.movedim(0, dim)

    x, y = with_mapped(a, in_dims[0], 0), with_mapped(b, in_dims[1], 1)
    ours = torch.vmap(tilesmith.matmul, in_dims)(x, y)
    torchs = torch.vmap(torch.matmul, in_dims)(x, y)
    assert ours.shape == torchs.shape
    torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize(("inner", "outer"), itertools.product([(0, 0), (0, None), (None, 1)], repeat=2))
def test_nested_vmap_is_torchs(inner: Any, outer: Any) -> None:
    def mapped(multiply: Callable[..., torch.Tensor]) -> torch.Tensor:
        x = random((4,) * (2 + (inner[0] is not None) + (outer[0] is not None)))
        y = random((4,) * (1 + (inner[1] is not None) + (outer[1] is not None)), seed=1)
        return torch.vmap(torch.vmap(multiply, inner), outer)(x, y)

    torch.testing.assert_close(mapped(tilesmith.matmul), mapped(torch.matmul))


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 1)])
def test_the_operator_itself_can_be_mapped(in_dims: Any) -> None:
    x, y = random((4,) * (3 if in_dims[0] is None else 4)), random((4,) * (3 if in_dims[1] is None else 4), seed=1)
    ours, torchs = (torch.vmap(torch.vmap(multiply), in_dims)(x, y) for multiply in (op.matmul, torch.matmul))
    torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 1)])
def test_gradients_through_vmap_are_torchs(in_dims: Any) -> None:
    grads = []
    for multiply in (tilesmith.matmul, torch.matmul):
        x, y = operands64((4, 4) if in_dims[0] is None else (4, 4, 4), (4, 4) if in_dims[1] is None else (4, 4, 4))
        torch.vmap(multiply, in_dims)(x, y).square().sum().backward()
        grads.append((x.grad, y.grad))
    torch.testing.assert_close(*grads)


def test_vmap_over_scalars_raises_what_torch_raises() -> None:
    for multiply in (tilesmith.matmul, torch.matmul):
        with pytest.raises(RuntimeError, match="1D"):
            torch.vmap(multiply)(torch.ones(3), torch.ones(3, 2))


@pytest.mark.usefixtures("fresh_dynamo")
@shapes_named(FEW_PAIRS)
def test_compiled_is_eager_with_gradients(a: Shape, b: Shape) -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (tilesmith.matmul(x * 2, y, accuracy="ieee") + 1).square().sum()

    grads = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=False)):
        x, y = operands64(a, b)
        function(x, y).backward()
        grads.append((x.grad, y.grad))
    torch.testing.assert_close(*grads)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled_writes_into_out(dynamic: bool) -> None:
    def write(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        tilesmith.matmul(x, y, out=out)
        return out + 1

    function = torch.compile(write, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    with torch._dynamo.config.patch(error_on_recompile=dynamic):
        for m, n, k in [(3, 4, 5), (6, 7, 8)]:
            x, y, out = random((m, k)), random((k, n)), torch.zeros(m, n)
            torch.testing.assert_close(function(x, y, out), torch.matmul(x, y) + 1)
            torch.testing.assert_close(out, torch.matmul(x, y))


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_vmap_is_eager() -> None:
    x, y = random((5, 3, 4)), random((4, 5), seed=1)
    function = torch.compile(torch.vmap(tilesmith.matmul, (0, 1)), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(function(x, y), torch.vmap(torch.matmul, (0, 1))(x, y))


@pytest.mark.usefixtures("fresh_dynamo")
def test_an_exported_graph_holds_the_operator() -> None:
    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return tilesmith.matmul(x, y, accuracy="ieee")

    exported = torch.export.export(Product(), (random((3, 4)), random((4, 2))))
    targets = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert targets == ["tilesmith.matmul.default"]
    x, y = random((3, 4), seed=5), random((4, 2), seed=6)
    assert torch.equal(exported.module()(x, y), torch.matmul(x, y))


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        *((x, x) for x in (torch.float32, torch.bfloat16, torch.float64, torch.int32)),
        *((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float16, torch.float32)),
    ],
    ids=str,
)
def test_autocast_casts_as_torch_does(a: torch.dtype, b: torch.dtype, target: torch.dtype) -> None:
    x, y = random((3, 4), a), random((4, 2), b, seed=1)
    with torch.autocast("cpu", target):
        ours, torchs = tilesmith.matmul(x, y), torch.matmul(x, y)
    assert ours.dtype == torchs.dtype
    assert torch.equal(ours, torchs)


def test_autocast_raises_where_torch_raises() -> None:
    for multiply in (tilesmith.matmul, torch.matmul):
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="dtype"):
            multiply(torch.ones(2, 2, dtype=torch.float64), torch.ones(2, 2))


def test_gradients_through_autocast_have_the_operands_type() -> None:
    grads = []
    for multiply in (tilesmith.matmul, torch.matmul):
        a, b = random((3, 4)).requires_grad_(), random((4, 2), seed=1).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            product = multiply(a, b)
        product.float().sum().backward()
        grads.append((a.grad, b.grad))
    assert {grad.dtype for pair in grads for grad in pair if grad is not None} == {torch.float32}
    torch.testing.assert_close(*grads)


def test_disabled_autocast_casts_nothing() -> None:
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert tilesmith.matmul(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


@shapes_named(PAIRS)
def test_fake_and_meta_tensors_give_torchs_shape_strides_and_type(a: Shape, b: Shape) -> None:
    expected = torch.matmul(torch.ones(a), torch.ones(b))
    with FakeTensorMode():
        fake = tilesmith.matmul(torch.ones(a), torch.ones(b))
    meta = tilesmith.matmul(torch.ones(a, device="meta"), torch.ones(b, device="meta"))
    for result, device in ((fake, "cpu"), (meta, "meta")):
        assert (result.shape, result.stride(), result.dtype) == (expected.shape, expected.stride(), torch.float32)
        assert result.device.type == device


def test_a_meta_out_is_accepted_and_resized() -> None:
    a, out = torch.ones(2, 3, device="meta"), torch.empty(0, device="meta")
    assert tilesmith.matmul(a, a.T, out=out) is out
    assert out.shape == (2, 2)


def test_modes_see_the_operator() -> None:
    with Seen() as seen:
        tilesmith.matmul(torch.ones(2, 2), torch.ones(2, 2))
        tilesmith.matmul(torch.ones(2, 2), torch.ones(2, 2), out=torch.ones(2, 2))
    assert {"tilesmith.matmul.default", "tilesmith.matmul_out.default"} <= {name for name, _ in seen.calls}
