"""The logits of a language model in bfloat16, forward and backward, with a vocabulary of odd size.

    python examples/bf16_vocab.py [--tokens 4096] [--hidden 1600] [--vocabulary 50257]

GPT-2 has 50257 tokens. A row of logits, and of their gradient, then starts at any even address: torch's product is
written there without wide stores, and both gradients are read from there without wide loads, at a fraction of their
speed. Nothing in the program changes for Tilesmith: the products of `F.linear` and of its backward pass are taken over
by `tilesmith.override`. Errors are against float64, of inputs that are drawn after the timing.
"""

import argparse

import torch
from side_by_side import device, machine, milliseconds, ours, relative_error, torchs_fp32
from torch.nn.functional import linear

import tilesmith

WAYS = {"torch": torchs_fp32, "tilesmith": ours}


class Logits:
    """A last layer, with random hidden states and a random gradient of the loss by its output."""

    def __init__(self, tokens: int, hidden: int, vocabulary: int, device: torch.device) -> None:
        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, dtype=torch.bfloat16, device=device)

        self.x = random(tokens, hidden).requires_grad_()
        self.weight = random(vocabulary, hidden).requires_grad_()
        self.gradient = random(tokens, vocabulary)

    def forward(self) -> torch.Tensor:
        return linear(self.x, self.weight)

    def forward_and_backward(self) -> dict[str, torch.Tensor]:
        logits = self.forward()
        of_x, of_weight = torch.autograd.grad(logits, (self.x, self.weight), self.gradient)
        return {"logits": logits.detach(), "gradient of x": of_x, "gradient of weight": of_weight}

    def exactly(self) -> dict[str, torch.Tensor]:
        x, weight, gradient = (each.detach().double() for each in (self.x, self.weight, self.gradient))
        return {"logits": x @ weight.T, "gradient of x": gradient @ weight, "gradient of weight": gradient.T @ x}


def main() -> None:
    parser = argparse.ArgumentParser(description="Logits in bfloat16 with an odd vocabulary, forward and backward.")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=1600)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--small", action="store_true", help="48 x 40 x 77, by emulated kernels on the CPU")
    arguments = parser.parse_args()
    tokens, hidden, vocabulary = arguments.tokens, arguments.hidden, arguments.vocabulary
    calls, rounds = 5, 15
    if arguments.small:
        tokens, hidden, vocabulary, calls, rounds = 48, 40, 77, 1, 1

    torch.manual_seed(0)
    with device(arguments.small) as on:
        print(f"{machine(on)}: {tokens} tokens, {hidden} wide, a vocabulary of {vocabulary}")
        layer = Logits(tokens, hidden, vocabulary, on)
        print(f"{'milliseconds':24} {'torch':>10} {'tilesmith':>10} {'ratio':>7}")
        for name, program in (("forward", layer.forward), ("forward and backward", layer.forward_and_backward)):
            times = milliseconds(program, WAYS, on, calls=calls, rounds=rounds)
            ratio = times["torch"] / times["tilesmith"]
            print(f"{name:24} {times['torch']:10.3f} {times['tilesmith']:10.3f} {ratio:7.2f}")

        fresh = Logits(tokens, hidden, vocabulary, on)
        found = {}
        for name, way in WAYS.items():
            with way():
                found[name] = fresh.forward_and_backward()
        print(tilesmith.stats())
        print(f"{'error against float64':24} {'torch':>10} {'tilesmith':>10}")
        wrong = []
        for name, exact in fresh.exactly().items():
            torchs, tilesmiths = (relative_error(found[way][name], exact) for way in WAYS)
            print(f"{name:24} {torchs:10.2e} {tilesmiths:10.2e}")
            if not tilesmiths <= 1.1 * torchs:
                wrong.append(name)
        if wrong:
            raise SystemExit(f"a larger error than torch's: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
