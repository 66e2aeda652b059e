"""Random programs through the pass over compiled graphs: their results have the form of torch's, and its exactness."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import tilesmith
from tilesmith.inductor.graph_pass import replace_products
from tilesmith.override.settings import Settings

PROGRAMS = 30
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
SIZES = (1, 2, 3, 5, 8, 16)


class Drawn:
    """A product, and up to five things after it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self.dtype = self._random.choice(DTYPES)
        self.inputs: list[Tensor] = []
        self._steps: list[Callable[[Any, Tensor | None], Tensor]] = []
        self._kept: set[int] = set()
        m, k, n = (self._random.choice(SIZES) for _ in range(3))
        batch = self._random.choice([(), (), (2,)])
        self._begin(batch, m, k, n)
        shape = (*batch, m, n)
        for _ in range(self._random.randrange(6)):
            shape = self._go_on(shape)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        value, kept = None, []
        for number, step in enumerate(self._steps):
            value = step(inputs, value)
            if number in self._kept:
                kept.append(value)
        assert value is not None
        return [value, *kept]

    def _input(self, *shape: int, dtype: torch.dtype | None = None) -> int:
        drawn = torch.randn(shape, generator=self._generator)
        self.inputs.append(drawn.to(dtype or self.dtype))
        return len(self.inputs) - 1

    def _begin(self, batch: tuple[int, ...], m: int, k: int, n: int) -> None:
        choose = self._random.choice
        a, across = self._input(*batch, m, k), choose([False, True])
        b = self._input(*batch, n, k) if across else self._input(*batch, k, n)
        c = self._input(*choose([(n,), (m, n), (1, n)]))
        alpha, beta, added = choose([1, 3, 0.25]), choose([1, 2, -0.5, 0]), choose([None, "addmm", "linear"])

        def multiplied(x: Any, value: Tensor | None) -> Tensor:
            right = x[b].mT if across else x[b]
            if added == "linear":
                return functional.linear(x[a], x[b], x[c][..., 0, :] if x[c].dim() > 1 else x[c])
            if added is None:
                return torch.matmul(x[a], right)
            add = torch.baddbmm if batch else torch.addmm
            return add(x[c], x[a], right, alpha=alpha, beta=beta)

        if added == "linear" and (batch or not across):
            added = None
        self._steps.append(multiplied)

    def _go_on(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Adds a step to a value of this shape; the shape afterwards."""
        choose, rows = self._random.choice, torch.Size(shape[:-1]).numel()
        row, like = self._input(*choose([(), (1,)]), shape[-1]), self._input(*shape, dtype=choose(DTYPES))
        factor, alpha, dtype = choose([2.0, -0.5, 3, 0.0]), choose([1, -1.5]), choose(DTYPES)
        flat = choose([(rows, shape[-1]), (rows * shape[-1],), (shape[-1], rows)])
        steps: dict[str, Callable[[Any, Any], Tensor]] = {
            "relu": lambda x, v: torch.relu(v),
            "gelu": lambda x, v: functional.gelu(v),
            "gelu by tanh": lambda x, v: functional.gelu(v, approximate="tanh"),
            "silu": lambda x, v: functional.silu(v),
            "tanh": lambda x, v: torch.tanh(v),
            "bias": lambda x, v: v + x[row],
            "bias before": lambda x, v: x[row] + v,
            "residual": lambda x, v: torch.add(v, x[like], alpha=alpha),
            "residual before": lambda x, v: torch.add(x[like], v, alpha=alpha),
            "difference": lambda x, v: x[like] - v,
            "factor": lambda x, v: v * factor,
            "quotient": lambda x, v: v / 3,
            "tensor": lambda x, v: v * x[like],
            "itself": lambda x, v: v + v,
            "type": lambda x, v: v.to(dtype),
            "view": lambda x, v: v.reshape(flat),
            "turned": lambda x, v: v.mT if v.dim() > 1 else v,
            "kept": lambda x, v: v,
        }
        name = choose(list(steps))
        if name == "kept":
            self._kept.add(len(self._steps) - 1)
            return shape
        self._steps.append(steps[name])
        if name == "turned" and len(shape) > 1:
            return (*shape[:-2], shape[-1], shape[-2])
        return flat if name == "view" else shape


def with_ours(program: Drawn) -> GraphModule:
    """The graph of a program, after Inductor's decompositions and our pass."""
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in program.inputs]
        gm = make_fx(program, decomposition_table=select_decomp_table())(*fakes)
    replace_products(gm.graph, "cpu", Settings())
    gm.graph.lint()
    gm.recompile()
    return gm


@pytest.fixture
def emulated(emulator_cache: None) -> Iterator[None]:
    with tilesmith.emulate("h200"), torch.no_grad():
        yield


@pytest.mark.usefixtures("emulated")
def test_random_programs_compute_the_same() -> None:
    taken = 0
    for seed in range(PROGRAMS):
        program = Drawn(seed)
        gm = with_ours(program)
        taken += any(node.target is torch.ops.tilesmith.product.default for node in gm.graph.nodes)
        exact = program(*(x.double() for x in program.inputs))
        for ours, torchs, truth in zip(gm(*program.inputs), program(*program.inputs), exact, strict=True):
            assert (ours.shape, ours.stride(), ours.dtype) == (torchs.shape, torchs.stride(), torchs.dtype), seed
            error, others = ((x.double() - truth.double()).norm() for x in (ours, torchs))
            rounding = max(ROUNDING[program.dtype], ROUNDING[ours.dtype])
            assert error <= 2 * others + rounding * (truth.double().norm() + 1e-3), seed
    assert taken > PROGRAMS * 0.7  # others are left to torch
