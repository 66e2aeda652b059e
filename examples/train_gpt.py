"""A transformer of GPT-2's small size, trained in float32: by torch's products, by its TF32, and by Tilesmith's.

    python examples/train_gpt.py [--steps 50] [--batch 8] [--context 1024] [--layers 12] [--plot losses.png]

All runs start from the same weights and read the same text, which is generated: each token has a few likely successors.
A step is forward, backward and AdamW, with one synchronisation. The runs take turns, step by step; the first steps,
which compile kernels, are not in the medians. Attention is `scaled_dot_product_attention`, as in most programs: torch's
own kernel in all runs.

How far may losses be from torch's? As far as torch's are from each other. But run again, torch may well add the same
numbers in the same order, and find the same bits. So it trains five times more on the same sums in other orders: words,
features, heads and units are shuffled, and the sequences of a batch. In exact arithmetic these are the same losses:
what is left is rounding. A run in float64 shows who is closer to the loss that exact arithmetic has.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import torch
from side_by_side import Way, device, machine, ours, torchs_fp32, torchs_tf32, wait
from torch import nn
from torch.nn.functional import cross_entropy, gelu, linear, scaled_dot_product_attention

import tilesmith

WARM_UP_STEPS = 5  # not timed
RISING_STEPS = 20  # of the learning rate
SHUFFLED_RUNS = 5
LARGEST_GRADIENT = 1.0  # by its norm: with larger ones training is chaotic, and no two runs stay together

Reorder = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Recipe:
    layers: int = 12
    width: int = 768
    heads: int = 12
    context: int = 1024
    vocabulary: int = 50257
    batch: int = 8
    steps: int = 50
    learning_rate: float = 2e-4


SMALL = Recipe(layers=1, width=32, heads=2, context=8, vocabulary=61, batch=4, steps=8, learning_rate=1e-2)


class Layer(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.heads = recipe.heads
        self.before_attention, self.before_mlp = nn.LayerNorm(recipe.width), nn.LayerNorm(recipe.width)
        self.qkv = nn.Linear(recipe.width, 3 * recipe.width)
        self.gather = nn.Linear(recipe.width, recipe.width)
        self.up = nn.Linear(recipe.width, 4 * recipe.width)
        self.down = nn.Linear(4 * recipe.width, recipe.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.before_attention(x)).chunk(3, dim=-1)
        )
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.gather(attended.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.before_mlp(x)), approximate="tanh"))  # type: ignore[no-any-return]


class GPT(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.tokens = nn.Embedding(recipe.vocabulary, recipe.width)  # the weight of the logits too
        self.positions = nn.Embedding(recipe.context, recipe.width)
        self.layers = nn.ModuleList(Layer(recipe) for _ in range(recipe.layers))
        self.last = nn.LayerNorm(recipe.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                is_residual = "gather" in name or "down" in name
                nn.init.normal_(parameter, std=0.02 / (2 * recipe.layers) ** 0.5 if is_residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return linear(self.last(x), self.tokens.weight)


@dataclass
class Training:
    """One run: its model, and what it has seen so far."""

    model: GPT
    learning_rate: float
    way: Way
    reorder: Reorder
    losses: list[float] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)

    def step(self, sequences: torch.Tensor) -> None:
        sequences = self.reorder(sequences)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * min(1, (len(self.losses) + 1) / RISING_STEPS)
        with self.way():
            wait(sequences.device)
            start = time.perf_counter()
            logits = self.model(sequences[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), LARGEST_GRADIENT)
            self.optimizer.step()
            self.optimizer.zero_grad()
            wait(sequences.device)
            self.milliseconds.append((time.perf_counter() - start) * 1e3)
        self.losses.append(loss.item())

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds[min(WARM_UP_STEPS, len(self.milliseconds) // 2) :])


def text(recipe: Recipe) -> torch.Tensor:
    """Steps x batch x (context + 1) tokens: mostly one of four that may follow the token before, else any. Some are
    far more frequent than others, as words are."""
    random = torch.Generator().manual_seed(1)
    sequences = recipe.steps * recipe.batch

    def any_tokens(*sizes: int) -> torch.Tensor:
        drawn = torch.exp(math.log(recipe.vocabulary) * torch.rand(sizes, generator=random)) - 1
        return drawn.long().clamp(max=recipe.vocabulary - 1)

    successors = any_tokens(recipe.vocabulary, 4)
    found = [any_tokens(sequences)]
    for _ in range(recipe.context):
        following = successors[found[-1], torch.randint(4, (sequences,), generator=random)]
        is_new = torch.rand(sequences, generator=random) < 0.1
        found.append(torch.where(is_new, any_tokens(sequences), following))
    return torch.stack(found, dim=1).reshape(recipe.steps, recipe.batch, -1)


def as_they_are(rows: torch.Tensor) -> torch.Tensor:
    return rows


@torch.no_grad()
def shuffled(model: GPT, seed: int) -> tuple[GPT, Reorder]:
    """The same function of other names for the words, with all that it sums over in another order; and what makes of a
    batch the same batch for it, with its sequences in another order."""
    random = torch.Generator().manual_seed(seed)
    model = deepcopy(model)
    words, width = model.tokens.weight.shape
    features = torch.randperm(width, generator=random)

    def reorder(layer: nn.Linear | nn.LayerNorm, outputs: torch.Tensor, inputs: torch.Tensor | None = None) -> None:
        layer.weight.copy_(layer.weight[outputs] if inputs is None else layer.weight[outputs][:, inputs])
        layer.bias.copy_(layer.bias[outputs])

    for layer in model.modules():
        if not isinstance(layer, Layer):
            continue
        heads = torch.arange(width).unflatten(0, (layer.heads, -1))
        heads = heads[torch.randperm(layer.heads, generator=random)]
        heads = heads[:, torch.randperm(heads.shape[1], generator=random)].flatten()
        units = torch.randperm(layer.up.out_features, generator=random)
        for norm in (layer.before_attention, layer.before_mlp):
            reorder(norm, features)
        reorder(layer.qkv, torch.cat([heads, heads + width, heads + 2 * width]), features)
        reorder(layer.gather, features, heads)
        reorder(layer.up, units, features)
        reorder(layer.down, features, units)
    reorder(model.last, features)
    model.positions.weight.copy_(model.positions.weight[:, features])
    old_words = torch.randperm(words, generator=random)
    model.tokens.weight.copy_(model.tokens.weight[old_words][:, features])
    new_words = old_words.argsort()
    return model, lambda sequences: new_words.to(sequences.device)[sequences.flip(0)]


def largest_difference(one: list[float], other: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(one, other, strict=True))


def plot(runs: dict[str, list[float]], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("there is no plot: matplotlib is not installed")
        return
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    of_losses, of_differences = figure.subplots(1, 2)
    for name, losses in runs.items():
        of_losses.plot(losses, label=name)
        differences = [abs(loss - exact) for loss, exact in zip(losses, runs["float64"], strict=True)]
        of_differences.semilogy(differences, label=name)
    of_losses.set(title="loss", xlabel="step")
    of_differences.set(title="distance from the loss in float64", xlabel="step")
    of_losses.legend()
    figure.savefig(path, dpi=150)
    print(f"the losses are in {path}")


def main() -> None:
    defaults = Recipe()
    parser = argparse.ArgumentParser(description="A transformer of GPT-2's small size, trained in float32.")
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--batch", type=int, default=defaults.batch, help="sequences of a step; 2 or more")
    parser.add_argument("--context", type=int, default=defaults.context)
    parser.add_argument("--layers", type=int, default=defaults.layers)
    parser.add_argument("--plot", type=Path, help="a PNG to write the losses to")
    parser.add_argument("--small", action="store_true", help="a tiny transformer, by emulated kernels on the CPU")
    arguments = parser.parse_args()
    recipe = Recipe(arguments.layers, context=arguments.context, batch=arguments.batch, steps=arguments.steps)
    if arguments.small:
        recipe = SMALL

    torch.manual_seed(0)
    with device(arguments.small) as on:
        initial = GPT(recipe)
        batches = text(recipe).to(on)
        parameters = sum(each.numel() for each in initial.parameters())
        print(f"{machine(on)}: {parameters:,} parameters, {recipe.batch} x {recipe.context} tokens a step")

        def training(
            way: Way, model: GPT = initial, reorder: Reorder = as_they_are, dtype: torch.dtype = torch.float32
        ) -> Training:
            return Training(deepcopy(model).to(on, dtype), recipe.learning_rate, way, reorder)

        exact = training(torchs_fp32, dtype=torch.float64)
        for batch in batches:
            exact.step(batch)
        runs = {"torch fp32": training(torchs_fp32), "tilesmith": training(ours)}
        for seed in range(1, SHUFFLED_RUNS + 1):
            runs[f"torch fp32, shuffled {seed}"] = training(torchs_fp32, *shuffled(initial, seed))
        if on.type == "cuda":
            runs["torch TF32"] = training(torchs_tf32)
        for batch in batches:
            for run in runs.values():
                run.step(batch)
        print(f"the products of tilesmith's last step:\n{tilesmith.stats()}")
        report({**runs, "float64": exact})
        if arguments.plot:
            plot({name: run.losses for name, run in {**runs, "float64": exact}.items()}, arguments.plot)
        check({name: run.losses for name, run in runs.items()}, exact.losses)


def report(runs: dict[str, Training]) -> None:
    torchs, exact = runs["torch fp32"], runs["float64"]
    print(f"{'':26} {'step ms':>8} {'ratio':>6} {'losses':>15}   largest distance from float64's, torch fp32's")
    for name, run in runs.items():
        from_exact = largest_difference(run.losses, exact.losses)
        from_torch = largest_difference(run.losses, torchs.losses)
        losses = f"{run.losses[0]:.3f} to {run.losses[-1]:.3f}"
        times = f"{run.median:8.2f} {torchs.median / run.median:6.2f}"
        print(f"{name:26} {times} {losses:>15}   {from_exact:32.1e} {from_torch:13.1e}")


def check(losses: dict[str, list[float]], exact: list[float]) -> None:
    """Says what the losses show, and raises if they are wrong."""
    torchs = {name: each for name, each in losses.items() if name.startswith("torch fp32")}
    spread = max(largest_difference(one, other) for one, other in combinations(torchs.values(), 2))
    distance = largest_difference(losses["tilesmith"], losses["torch fp32"])
    verdict = "no more" if distance <= spread else "more"
    print(
        f"torch's float32 runs differ by up to {spread:.1e}; tilesmith from torch by {distance:.1e}, which is {verdict}"
    )

    from_exact = {name: largest_difference(each, exact) for name, each in losses.items()}
    rounding_of_a_loss = 1e-5
    if not from_exact["tilesmith"] <= max(rounding_of_a_loss, 4 * max(from_exact[name] for name in torchs)):
        raise SystemExit("the losses are further from float64's than torch's are")
    if not losses["tilesmith"][-1] < losses["tilesmith"][0]:
        raise SystemExit("the loss does not fall")


if __name__ == "__main__":
    main()
