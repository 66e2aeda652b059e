"""Programs that are compiled once for many sizes: nothing of ours makes `torch.compile` look at a size."""

from collections.abc import Callable

import dynamic_shapes
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import tilesmith

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

LENGTHS = (7, 12, 33, 5, 64, 2, 3, 17, 40, 9)  # of them, none but the first is known when a program is compiled
LINEAR = tilesmith.nn.Linear(16, 24, activation="gelu")
WEIGHT, BIAS = LINEAR.weight, LINEAR.bias

Program = Callable[..., Tensor]
Shapes = Callable[[int], tuple[tuple[int, ...], ...]]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return tilesmith.matmul(tilesmith.matmul(q, k.mT).softmax(-1), v)


def linear(x: Tensor, residual: Tensor | None = None) -> Tensor:
    return tilesmith.linear(x, WEIGHT.to(x.dtype), BIAS.to(x.dtype), activation="silu", residual=residual)


def layer(x: Tensor) -> Tensor:
    return LINEAR.forward(x.float())


PROGRAMS: dict[str, tuple[Program, Shapes]] = {
    "rows": (tilesmith.matmul, lambda n: ((n, 16), (16, 24))),
    "depth": (tilesmith.matmul, lambda n: ((20, n), (n, 24))),
    "all sizes": (tilesmith.matmul, lambda n: ((n, n + 1), (n + 1, n + 2))),
    "batch": (tilesmith.matmul, lambda n: ((n, 8, 16), (n, 16, 24))),
    "batch of one weight": (tilesmith.matmul, lambda n: ((n, 8, 16), (16, 24))),
    "batch that is broadcast": (tilesmith.matmul, lambda n: ((n, 1, 8, 16), (6, 16, 24))),
    "attention": (attention, lambda n: ((2, 4, n, 16),) * 3),
    "vmap": (torch.vmap(tilesmith.matmul, (0, None)), lambda n: ((n, 8, 16), (16, 24))),
    "linear of sequences": (linear, lambda n: ((n + 1, n, 16),)),
    "linear and residual": (linear, lambda n: ((3, n, 16), (3, n, 24))),
    "linear and residual of fewer dimensions": (linear, lambda n: ((3, n, 16), (n, 24))),
    "layer": (layer, lambda n: ((4, n, 16),)),
}


def operands(shapes: Shapes, length: int, dtype: torch.dtype, gradients: bool) -> list[Tensor]:
    torch.manual_seed(length)
    return [torch.randn(shape).to(dtype).requires_grad_(gradients) for shape in shapes(length)]


def check_as_eager(compiled: Program, program: Program, tensors: list[Tensor]) -> None:
    """The values of a program, and the gradients of those of its operands that want one."""
    results = []
    for each in (compiled, program):
        y = each(*tensors)
        leaves = [x for x in tensors if x.requires_grad]
        results.append((y, *(torch.autograd.grad(y.float().square().sum(), leaves) if leaves else ())))
    torch.testing.assert_close(*results)


WITHOUT_GRADIENTS = ("all sizes", "attention", "vmap", "linear of sequences", "layer")


@pytest.mark.parametrize(
    ("name", "gradients", "dtype"),
    [
        *((name, True, torch.bfloat16) for name in PROGRAMS),
        *((name, False, torch.float32) for name in WITHOUT_GRADIENTS),
    ],
    ids=str,
)
def test_one_graph_is_for_all_sizes(name: str, gradients: bool, dtype: torch.dtype) -> None:
    program, shapes = PROGRAMS[name]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(program, backend=counter, dynamic=True, fullgraph=True)
    with torch.set_grad_enabled(gradients):
        for length in LENGTHS:
            check_as_eager(compiled, program, operands(shapes, length, dtype, gradients))
        assert counter.frame_count == 1
        check_as_eager(compiled, program, operands(shapes, 1, dtype, gradients))
        assert counter.frame_count == 2  # torch itself keeps sizes of 1 apart


@pytest.mark.parametrize("name", ["batch of one weight", "layer"])
def test_the_second_length_is_compiled_for_all_others(name: str) -> None:
    program, shapes = PROGRAMS[name]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(program, backend=counter, fullgraph=True)
    for length in LENGTHS:
        check_as_eager(compiled, program, operands(shapes, length, torch.float32, True))
    assert counter.frame_count == 2


@pytest.mark.parametrize("program", [linear, lambda x: tilesmith.matmul(x, WEIGHT.mT)], ids=["linear", "matmul"])
def test_dimensions_that_are_marked_as_dynamic(program: Program) -> None:
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in LENGTHS:
            x = torch.randn(length + 1, length, 16, requires_grad=True)
            for dim in (0, 1):
                torch._dynamo.mark_dynamic(x, dim)  # torch.compile raises if it is not
            check_as_eager(compiled, program, [x])


CHOSEN: dict[str, tuple[Program, tuple[int, ...]]] = {
    "rows": (lambda x, chosen: linear(x[chosen], x[chosen] @ WEIGHT.mT), (8, 16)),
    "depth": (lambda x, chosen: tilesmith.matmul(x[chosen].mT, x[~chosen]), (8, 16)),
    "batch": (lambda x, chosen: tilesmith.matmul(x[chosen], x[~chosen].mT), (8, 5, 16)),
    "batch of one weight": (lambda x, chosen: tilesmith.matmul(x[chosen], WEIGHT.mT), (8, 5, 16)),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_sizes_that_only_the_values_tell(name: str) -> None:
    program, shape = CHOSEN[name]
    x = torch.randn(shape)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, error_on_recompile=True):
        compiled = torch.compile(program, backend="aot_eager", dynamic=True, fullgraph=True)
        for chosen in (torch.arange(8) < 4, torch.arange(8) % 2 == 0):
            torch.testing.assert_close(compiled(x, chosen), program(x, chosen))
        three = torch.arange(8) < 3
        if name in ("depth", "batch"):  # which do not go with those of the five others
            with pytest.raises(RuntimeError):
                compiled(x, three)
        else:
            torch.testing.assert_close(compiled(x, three), program(x, three))


def test_exported_for_all_sizes() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.back = LINEAR, tilesmith.nn.Linear(24, 16)

        def forward(self, x: Tensor) -> Tensor:
            y = self.back(self.layer(x), x)
            return attention(y, y, y)

    model, any_size = Model(), torch.export.Dim.DYNAMIC
    x = torch.randn(3, 7, 16)
    exported = torch.export.export(model, (x,), dynamic_shapes={"x": {0: any_size, 1: any_size}})
    for batch, length in [(3, 7), (5, 2), (1, 1), (2, 40)]:
        x = torch.randn(batch, length, 16)
        torch.testing.assert_close(exported.module()(x), model(x))


@pytest.mark.usefixtures("emulator_cache")
def test_a_compiled_transformer_takes_the_routes_of_the_eager_one() -> None:
    dynamic_shapes.check_transformer("cpu", torch.float32, "aot_eager", layers=1, width=16, lengths=(5, 9, 2))
