"""One small program in all the ways that PyTorch runs programs: compiled, differentiated twice, exported and so on.

Its products are ours in two ways: it calls `tilesmith.matmul`, or it calls torch's own product under
`tilesmith.override`. Each check takes the one or the other, on CPU tensors in the emulator or on a GPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tilesmith

Multiply = Callable[[Tensor, Tensor], Tensor]
Program = Callable[[Tensor, Tensor, Tensor], Tensor]

# Where torch's product is rounded once, to 24 bits, ours may have the floor of the promise, 3e-7: five times that.
WITHIN_THE_PROMISE = 5.0
FLOOR = 3e-7


@dataclass(frozen=True)
class Way:
    """How products come to be ours, and on tensors of which device."""

    of: Literal["matmul", "override"]
    device: Literal["cpu", "cuda"]

    @property
    def multiply(self) -> Multiply:
        return tilesmith.matmul if self.of == "matmul" else torch.matmul

    @property
    def program(self) -> Program:
        return program_of(self.multiply)

    @contextmanager
    def scope(self) -> Iterator[None]:
        with (
            tilesmith.emulate() if self.device == "cpu" else nullcontext(),
            tilesmith.override() if self.of == "override" else nullcontext(),
        ):
            yield

    def operands(self, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """x, w and v of the program: small for the emulator."""
        rows, width, hidden = (12, 40, 8) if self.device == "cpu" else (192, 256, 320)
        generator = torch.Generator().manual_seed(seed)
        shapes = ((rows, width), (width, hidden), (hidden, width))
        x, w, v = (torch.randn(shape, generator=generator) for shape in shapes)
        return x.to(self.device), (w / width**0.5).to(self.device), (v / hidden**0.5).to(self.device)


def program_of(multiply: Multiply) -> Program:
    return lambda x, w, v: multiply(torch.tanh(multiply(x, w)), v)


def products_of(multiply: Multiply) -> Program:
    """With products alone, for which Inductor writes no kernel: its C++ takes long to compile on a CPU."""
    return lambda x, w, v: multiply(multiply(x, w), v)


def value_and_gradients(program: Program, x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    leaves = [t.detach().clone().requires_grad_() for t in (x, w, v)]
    y = program(*leaves)
    y.float().square().sum().backward()
    return y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def assert_as_exact(found: Any, torchs: Any, exact: Any) -> None:
    """Tensors of a program with our products, of torch's, and of one in float64."""
    for one, other, reference in zip(found, torchs, exact, strict=True):
        assert one.shape == reference.shape and one.dtype == other.dtype
        ours, limit = error(one, reference), WITHIN_THE_PROMISE * error(other, reference) + FLOOR
        assert ours <= limit, f"the error is {ours:.2e}, more than {limit:.2e}"


def assert_right(
    way: Way,
    run: Callable[[Program, Tensor, Tensor, Tensor], Any],
    program: Program,
    make: Callable[[Multiply], Program] = program_of,
    seed: int = 0,
) -> None:
    """What `run` makes of our program is what it makes of torch's in eager mode, within the promise."""
    operands = way.operands(seed=seed)
    torchs, exact = (run(make(torch.matmul), *each) for each in (operands, [t.double() for t in operands]))
    with way.scope():
        found = run(program, *operands)
    assert_as_exact(found, torchs, exact)


def check_compiled(way: Way, make: Callable[[Multiply], Program] = program_of, **options: Any) -> None:
    torch._dynamo.reset()
    assert_right(way, value_and_gradients, torch.compile(make(way.multiply), fullgraph=True, **options), make)


def value(program: Program, *operands: Tensor) -> tuple[Tensor]:
    with torch.no_grad():
        return (program(*operands),)


def check_compiled_again(way: Way, *, gradients: bool, **options: Any) -> None:
    """The later calls of a compiled program too: those that a CUDA graph is captured for, and that replay it."""
    torch._dynamo.reset()
    run = value_and_gradients if gradients else value
    compiled = torch.compile(way.program, fullgraph=True, **options)
    for seed in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        assert_right(way, run, compiled, seed=seed)


def check_graphed(way: Way) -> None:
    """CUDA graphs of a training step: an override must hold while they are captured, and no longer."""
    with way.scope():
        samples = tuple(t.requires_grad_() for t in way.operands(seed=1))
        graphed: Any = torch.cuda.make_graphed_callables(way.program, samples)
        eager = [value_and_gradients(way.program, *way.operands(seed=seed)) for seed in (2, 3)]
    for seed, wanted in zip((2, 3), eager, strict=True):
        found = value_and_gradients(graphed, *way.operands(seed=seed))
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def check_compiled_with_dynamic_shapes(way: Way, **options: Any) -> None:
    torch._dynamo.reset()
    x, w, v = way.operands()
    compiled = torch.compile(way.program, fullgraph=True, dynamic=True, **options)
    with way.scope(), torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (len(x), len(x) - 3, len(x) // 2):
            some = x[:rows].clone()
            found = compiled(some, w, v)
            assert error(found, program_of(torch.matmul)(some.double(), w.double(), v.double())) <= 1e-6


def check_autocast(way: Way, dtype: torch.dtype) -> None:
    """In 16 bits every product is rounded: as many times as torch's."""
    operands = way.operands()

    def run(program: Program) -> tuple[Tensor, ...]:
        def in_autocast(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
            with torch.autocast(way.device, dtype=dtype):
                return program(x, w, v)

        return value_and_gradients(in_autocast, *operands)

    torchs = run(program_of(torch.matmul))
    with way.scope():
        found = run(way.program)
    exact = value_and_gradients(program_of(torch.matmul), *(t.double() for t in operands))
    for one, other, reference in zip(found, torchs, exact, strict=True):
        assert one.dtype == other.dtype
        assert error(one, reference) <= 1.2 * error(other, reference)
    assert found[0].dtype == dtype


def check_functions(way: Way) -> None:
    """torch.func: grad, vmap of grad, jvp, and the Hessian, which is forward over reverse."""

    def run(program: Program, x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        def loss(x: Tensor, w: Tensor) -> Tensor:
            return program(x, w, v).square().mean()

        return (
            torch.func.grad(loss, argnums=1)(x, w),
            torch.vmap(torch.func.grad(loss), in_dims=(0, None))(x.unflatten(0, (4, -1)), w),
            *torch.func.jvp(program, (x, w, v), (x.cos(), w.cos(), v.cos())),
            torch.func.hessian(loss)(x[0, :8], w[:8]),
        )

    assert_right(way, run, way.program)


def check_deterministic_mode(way: Way) -> None:
    operands = way.operands()
    torch.use_deterministic_algorithms(True)
    try:
        with way.scope():
            first, second = (value_and_gradients(way.program, *operands) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    with way.scope():
        outside = value_and_gradients(way.program, *operands)
    assert all(torch.equal(one, other) for one, other in zip(first, outside, strict=True))


def check_inference_mode(way: Way) -> None:
    def run(program: Program, x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor]:
        with torch.inference_mode():
            y = program(x, w, v)
        assert y.is_inference() and not y.requires_grad
        return (y.clone(),)

    assert_right(way, run, way.program)


def check_gradients_twice(way: Way) -> None:
    """A second backward pass through the same graph, and gradients of gradients."""

    def run(program: Program, *operands: Tensor) -> tuple[Tensor, ...]:
        leaves = [t.detach().clone().requires_grad_() for t in operands]
        loss = program(*leaves).square().mean()
        first = torch.autograd.grad(loss, leaves, retain_graph=True)
        again = torch.autograd.grad(loss, leaves, create_graph=True)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
        penalty = torch.stack([each.square().sum() for each in again]).sum()
        return *first, *torch.autograd.grad(penalty, leaves)

    assert_right(way, run, way.program)


def check_checkpoint(way: Way, *, reentrant: bool) -> None:
    def recomputed(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return checkpoint(way.program, x, w, v, use_reentrant=reentrant)  # type: ignore[no-any-return]

    assert_right(way, value_and_gradients, recomputed)
    operands = way.operands()
    with way.scope():
        pairs = zip(*(value_and_gradients(each, *operands) for each in (way.program, recomputed)), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


class Exportable(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return self.program(x, w, v)


def check_export(way: Way) -> None:
    """With any number of rows; saved, loaded, and run on another number of them."""
    x, w, v = way.operands()
    dynamic = ({0: torch.export.Dim("rows", min=2)}, None, None)
    with way.scope():
        exported = torch.export.export(Exportable(way.program), (x, w, v), dynamic_shapes=dynamic)
        file = BytesIO()
        torch.export.save(exported, file)
        file.seek(0)
        loaded = torch.export.load(file).module()
        found = loaded(x[:7], w, v)
        assert torch.equal(found, way.program(x[:7], w, v))
    operator = "tilesmith.matmul.default" if way.of == "matmul" else "aten.matmul.default"
    assert [str(node.target) for node in exported.graph.nodes].count(operator) == 2


# What a program is put through, on either device.
CHECKS: dict[str, Callable[[Way], None]] = {
    "autocast to bfloat16": lambda way: check_autocast(way, torch.bfloat16),
    "autocast to float16": lambda way: check_autocast(way, torch.float16),
    "transforms of functions": check_functions,
    "deterministic mode": check_deterministic_mode,
    "inference mode": check_inference_mode,
    "gradients twice": check_gradients_twice,
    "saved checkpoints": lambda way: check_checkpoint(way, reentrant=False),
    "reentrant checkpoints": lambda way: check_checkpoint(way, reentrant=True),
    "export": check_export,
}


# PyTorch's own modules and functions, under the override.


def attention(width: int) -> nn.Module:
    class ToItself(nn.MultiheadAttention):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x, x, x)[0]

    return ToItself(width, 4, batch_first=True)


def transformer(width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def lstm(width: int) -> nn.Module:
    class Outputs(nn.LSTM):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x)[0]

    return Outputs(width, width // 2, num_layers=2, batch_first=True)


MODULES: dict[str, Callable[[int], nn.Module]] = {"attention": attention, "transformer": transformer, "lstm": lstm}


def check_module(device: Literal["cpu", "cuda"], name: str) -> None:
    """Its output and all gradients, and its output in evaluation, for which torch has faster ways."""
    torch.manual_seed(0)
    width = 16 if device == "cpu" else 128
    module, x = MODULES[name](width).to(device), torch.randn(3, 9, width, device=device)

    def run(module: nn.Module, x: Tensor) -> list[Tensor]:
        y = module.train()(x)
        with torch.no_grad():
            inferred = module.eval()(x)
        return [y.detach(), inferred, *torch.autograd.grad(y.square().mean(), tuple(module.parameters()))]

    # The LSTMs of oneDNN and cuDNN have products of their own.
    with torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False):
        torchs, exact = run(module, x), run(deepcopy(module).double(), x.double())
        with Way("override", device).scope():
            found = run(module, x)
    assert_as_exact(found, torchs, exact)
    assert tilesmith.stats().calls("tilesmith") > 0, tilesmith.stats()


LINEAR_ALGEBRA: dict[str, Callable[[Tensor], Tensor]] = {
    "multi_dot": lambda a: torch.linalg.multi_dot([a, a[:, :20], a[:20], a]),
    "matrix_power": lambda a: torch.linalg.matrix_power(a, 5),
    "matrix_exp": lambda a: torch.linalg.matrix_exp(a / 2),
    "pinv": lambda a: torch.linalg.pinv(a[:, :20]),
    "lstsq": lambda a: a[:, :20] @ torch.linalg.lstsq(a[:, :20], a[:, 20:]).solution - a[:, 20:],
    "einsum": lambda a: torch.einsum("ij,jk,kl->il", a, a, a[:, :5]),
    "cdist": lambda a: torch.cdist(a, a.flip(0) + 1),
}


def check_linear_algebra(device: Literal["cpu", "cuda"], name: str) -> None:
    size = 32 if device == "cpu" else 200
    generator = torch.Generator().manual_seed(0)
    a = (torch.randn(size, size, generator=generator) / size**0.5 + 2 * torch.eye(size)).to(device)
    function = LINEAR_ALGEBRA[name]
    torchs, exact = function(a), function(a.double())
    with Way("override", device).scope():
        found = function(a)
    assert_as_exact([found], [torchs], [exact])
    assert tilesmith.stats().calls("tilesmith") > 0, tilesmith.stats()
