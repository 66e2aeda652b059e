"""A transformer of torch's products alone, compiled for sequences of any length and run under `tilesmith.override`."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import tilesmith

Step = tuple[Tensor, ...]


class Block(nn.Module):
    """One layer, whose products are linear layers, `addmm`, `baddbmm`, `bmm` and `einsum`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.depth = heads, width // heads
        self.norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.query_key_value(self.norm(x)).view(batch, length, 3, self.heads, self.depth)
        q, k, v = (each.transpose(1, 2).flatten(0, 1) for each in heads.unbind(2))
        later = x.new_full((length, length), -1e4).triu(1)
        weights = torch.baddbmm(later, q, k.mT, alpha=self.depth**-0.5).softmax(-1)
        seen = torch.bmm(weights, v).view(batch, self.heads, length, self.depth).transpose(1, 2).reshape(-1, width)
        x = x + torch.addmm(self.out.bias, seen, self.out.weight.mT).view(batch, length, width)
        wide = functional.gelu(self.up(x))
        return x + torch.einsum("blw,vw->blv", wide, self.down.weight)


def step(run: Any, model: nn.Module, x: Tensor) -> Step:
    """The result of a model, and the gradients of its parameters. `run` is the model, compiled or not."""
    model.zero_grad()
    y = run(x)
    y.float().square().mean().backward()
    return y.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)


@contextmanager
def overridden(device: str) -> Iterator[None]:
    with tilesmith.emulate() if device == "cpu" else nullcontext(), tilesmith.override():
        yield


def taken() -> set[tuple[Any, ...]]:
    """The products that the last override gave to our kernels."""
    return {(each.operator, each.a, each.b) for each in tilesmith.stats().entries if each.where == "tilesmith"}


def error(found: Step, exact: Step) -> float:
    """The largest among the relative errors of a step's tensors."""
    return max(float((x.double() - y).norm() / y.norm()) for x, y in zip(found, exact, strict=True))


def check_transformer(
    device: str, dtype: torch.dtype, backend: str, *, layers: int, width: int, lengths: tuple[int, ...]
) -> None:
    """Compiled once, it takes the routes of the eager model for every length, forward and backward. Where the backend
    runs torch's operators as they are, it has the same bits."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(width, heads=2) for _ in range(layers))).to(device, dtype)
    exact_model = deepcopy(model).double()
    compiled = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in lengths:
            x = torch.randn(3, length, width, device=device, dtype=dtype)
            with overridden(device):
                eager = step(model, model, x)
                by_eager, routes = taken(), set(tilesmith.stats().entries)
            with overridden(device):
                found = step(compiled, model, x)
            if backend == "aot_eager":
                assert by_eager and set(tilesmith.stats().entries) == routes, tilesmith.stats()
                assert all(torch.equal(one, other) for one, other in zip(found, eager, strict=True)), length
            else:  # Inductor makes other operators of some
                assert taken() & by_eager, tilesmith.stats()
            exact = step(exact_model, exact_model, x.double())
            assert error(found, exact) <= 2 * error(eager, exact) + 1e-6, length
            assert error(eager, exact) <= (1e-5 if dtype == torch.float32 else 0.05), length
