"""Steps of compiled programs, by Inductor alone and with Tilesmith's products: medians, and what compiling took.

    PYTHONPATH=src:examples python3 scripts/compiled_steps.py
    PYTHONPATH=src:examples python3 scripts/compiled_steps.py --only mlp --only gpt --seconds 8

The ways take turns, a few steps each, on the same model. A step is forward and backward, and of the language model the
optimizer too. The first step compiles with an empty cache, and is not in the medians. Each program's gradients are
compared with Inductor's, so that no step is fast by leaving something out.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import click
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, rms_norm, scaled_dot_product_attention, silu
from train_gpt import GPT, Recipe

import tilesmith
from tilesmith.bench.timing import float32_precision
from tilesmith.inductor.backend import backend

_STEPS_A_TURN: Final = 5
_MAX_DIFFERENCE: Final = {torch.bfloat16: 0.1, torch.float32: 1e-3}  # of gradients, by their norm


class Llama(nn.Module):
    """One layer of Llama's 8B size and the logits of its vocabulary."""

    def __init__(self, width: int = 4096, inner: int = 14336, vocabulary: int = 128256, heads: int = 32) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.norms = nn.ParameterList(torch.ones(width) for _ in range(3))
        self.q, self.gather = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, width // 2, bias=False)  # a quarter of the heads, keys and values
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.logits = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.norms
        normed = rms_norm(x, (self.width,), first)
        q = self.q(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (half.unflatten(-1, (self.heads // 4, -1)).transpose(1, 2) for half in self.kv(normed).chunk(2, -1))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.gather(attended.transpose(1, 2).flatten(2))
        normed = rms_norm(x, (self.width,), second)
        x = x + self.down(silu(self.gate(normed)) * self.up(normed))
        return self.logits(rms_norm(x, (self.width,), third))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self, width: int = 4096) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Program:
    """A model on the GPU, an input, and a loss of the output."""

    model: nn.Module
    x: Tensor
    loss: Callable[[Tensor], Tensor]
    has_optimizer: bool = False


def gpt(dtype: torch.dtype) -> Program:
    recipe = Recipe(layers=4)
    tokens = torch.randint(recipe.vocabulary, (recipe.batch, recipe.context + 1), device="cuda")
    model = GPT(recipe).to("cuda", dtype)
    return Program(
        model, tokens[:, :-1], lambda logits: cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), True
    )


def encoder(dtype: torch.dtype) -> Program:
    """PyTorch's own layers, of the same size."""
    width, heads = 768, 12
    with torch.device("cuda"):
        layers = [
            nn.TransformerEncoderLayer(
                *(width, heads, 4 * width), dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(4)
        ]
        model = nn.Sequential(*layers, nn.Linear(width, 50257, bias=False)).to(dtype)
        return Program(model, torch.randn(4, 1024, width).to(dtype), lambda y: y.float().square().mean(), True)


def llama(dtype: torch.dtype) -> Program:
    with torch.device("cuda"):
        model, x = Llama().to(dtype), torch.randn(1, 4096, 4096).to(dtype)
        targets = torch.randint(128256, (4096,))
    return Program(model, x, lambda logits: cross_entropy(logits.flatten(0, 1), targets))


def mlp(dtype: torch.dtype) -> Program:
    with torch.device("cuda"):
        return Program(Mlp().to(dtype), torch.randn(8192, 4096).to(dtype), lambda y: y.float().square().mean())


def mlp_inference(dtype: torch.dtype) -> Program:
    program = mlp(dtype)
    return Program(program.model.requires_grad_(False), program.x, lambda y: y)


PROGRAMS: Final = {
    "gpt": (gpt, torch.bfloat16),
    "gpt fp32": (gpt, torch.float32),
    "encoder": (encoder, torch.bfloat16),
    "encoder fp32": (encoder, torch.float32),
    "llama": (llama, torch.bfloat16),
    "mlp": (mlp, torch.bfloat16),
    "mlp inference": (mlp_inference, torch.bfloat16),
}


@dataclass
class Way:
    """A program compiled in one way."""

    name: str
    scope: Callable[[], AbstractContextManager[None]]
    run: Callable[[Tensor], Tensor]
    compile_seconds: float = 0.0
    milliseconds: list[float] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)


@contextmanager
def empty_cache() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["TORCHINDUCTOR_CACHE_DIR"]
            else:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


def measured(program: Program, seconds: float, mode: str | None) -> list[Way]:
    model, x = program.model, program.x
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True) if program.has_optimizer else None

    def step(way: Way) -> None:
        model.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        loss = program.loss(way.run(x))
        if loss.requires_grad:
            loss.backward()
        if optimizer is not None:
            optimizer.step()

    # A backend of its own for each way: Dynamo keeps compiled code by the backend, and would give both the same.
    alone: Any = torch.compile(model, mode=mode, fullgraph=True)
    with_ours: Any = torch.compile(model, backend=backend, mode=mode, fullgraph=True)
    ways = [Way("Inductor", nullcontext, alone), Way("with ours", tilesmith.override, with_ours)]
    for way in ways:
        with way.scope():
            start = time.perf_counter()
            step(way)
            torch.cuda.synchronize()
            way.compile_seconds = time.perf_counter() - start
            way.gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
            for _ in range(4):  # captures, and launches that come again
                step(way)
            torch.cuda.synchronize()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(ways[0].milliseconds) < 2 * _STEPS_A_TURN:
        for way in ways:
            with way.scope():
                for _ in range(_STEPS_A_TURN):
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    step(way)
                    torch.cuda.synchronize()
                    way.milliseconds.append((time.perf_counter() - start) * 1e3)
    return ways


def difference(ways: list[Way]) -> float:
    """The largest difference of two gradients, by the norm of Inductor's."""
    pairs = zip(ways[0].gradients, ways[1].gradients, strict=True)
    return max((float((ours - other).norm() / other.norm()) for other, ours in pairs), default=0.0)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(PROGRAMS)), help="Measures these alone.")
@click.option("--seconds", default=10.0, help="Of steps, for each program.")
@click.option("--mode", default=None, help="As for torch.compile.")
def main(only: tuple[str, ...], seconds: float, mode: str | None) -> None:
    """Measures compiled programs with and without Tilesmith."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, mode {mode or 'default'}")
    print(f"{'':14} {'Inductor':>11} {'with ours':>11} {'ratio':>7}   {'compiled in':>16}   calls, ours and torch's")
    wrong = []
    for name in only or PROGRAMS:
        make, dtype = PROGRAMS[name]
        torch.manual_seed(0)
        torch._dynamo.reset()
        with empty_cache(), float32_precision("ieee"):
            ways = measured(make(dtype), seconds, mode)
        alone, ours = (statistics.median(way.milliseconds) for way in ways)
        counted = tilesmith.stats()
        print(
            f"{name:14} {alone:8.3f} ms {ours:8.3f} ms {alone / ours:6.3f}x "
            f"{ways[0].compile_seconds:7.1f} {ways[1].compile_seconds:7.1f} s   "
            f"{counted.calls('tilesmith')}, {counted.calls('torch')}",
            flush=True,
        )
        if not difference(ways) <= _MAX_DIFFERENCE[dtype]:
            wrong.append(f"{name}: gradients differ by {difference(ways):.3g}")
        del ways
        torch.cuda.empty_cache()
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
