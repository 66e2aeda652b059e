"""A program with products of every form, each compared with float64. test_built_ahead.py has new processes run it, by
kernels that NVRTC compiles and by kernels that were built ahead. It prints a JSON object: a digest of the bits of each
result.

    products_of_every_kind.py KIND compiled [ARCHIVE]    by NVRTC and no archive; then one is built of these kernels
    products_of_every_kind.py KIND built_ahead           by archives alone: NVRTC cannot be imported
"""

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn import functional
from torchs_linear import ACTIVATED

import tilesmith
from tilesmith.cli import main as command_line
from tilesmith.core.device import installed
from tilesmith.core.errors import UnavailableError
from tilesmith.kernels import catalogue
from tilesmith.runtime import archive, cache, compiler, loading


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of operands, and how exact their products are to be.

    may_err: the largest error of an element, relative to what elements are like. It is a few times what there should
    be, and a tenth at most of what a wrong element has.
    """

    dtype: torch.dtype
    may_err: float
    accuracy: str | None = None

    def operand(self, device: str, *shape: int) -> Tensor:
        if not self.dtype.is_floating_point:
            return torch.randint(-100, 100, shape, device=device).to(self.dtype)
        return torch.randn(shape, device=device, dtype=torch.float64).to(self.dtype)

    def check(self, name: str, result: Tensor, exact: Tensor) -> None:
        assert result.shape == exact.shape and result.dtype == self.dtype, (name, result.shape, result.dtype)
        worst = ((result.double() - exact).abs().max() / exact.square().mean().sqrt()).item()
        assert worst <= self.may_err, f"{name} has an error of {worst:.1e}, and may have {self.may_err:.1e}"


KINDS: Final = {
    "fp32": Kind(torch.float32, 1e-5, "fp32"),
    "tf32": Kind(torch.float32, 1e-2, "tf32"),
    "ieee": Kind(torch.float32, 5e-5, "ieee"),
    "bfloat16": Kind(torch.bfloat16, 5e-2),
    "float16": Kind(torch.float16, 1e-2),
    "float64": Kind(torch.float64, 1e-12),
    "int32": Kind(torch.int32, 0.0),
}
FLOATS: Final = [name for name, kind in KINDS.items() if kind.dtype.is_floating_point]
OF_OVERRIDES: Final = ("fp32", "tf32", "bfloat16", "float16")  # for the others torch has tensor cores, or nothing

Checked = tuple[str, Tensor, Tensor]  # what it is, the result, and what it is in float64
Operand = Callable[..., Tensor]  # random numbers of a shape


def results(name: str, device: str) -> dict[str, Tensor]:
    """Those of one kind. Raises AssertionError if one is wrong."""
    torch.manual_seed(0)
    kind = KINDS[name]
    operand = partial(kind.operand, device)
    found: dict[str, Tensor] = {}
    for what, result, exact in _all(name, kind, operand):
        kind.check(what, result, exact)
        found[what] = result.detach()
    return found


def _all(name: str, kind: Kind, operand: Operand) -> Iterator[Checked]:
    yield from _products(kind, operand)
    if name in FLOATS:
        yield from _layers(kind, operand)
    if name in OF_OVERRIDES:
        yield from _overridden(kind, operand)


def _products(kind: Kind, operand: Operand) -> Iterator[Checked]:
    """`matmul` and `pack`."""
    pairs = {
        "aligned": (operand(1024, 1024), operand(1024, 1024)),
        "odd": (operand(1001, 1003), operand(1003, 999)),
        "small and odd": (operand(33, 205), operand(205, 117)),
        "transposed": (operand(512, 1024).mT, operand(1024, 512).mT),
        "odd and transposed": (operand(171, 255).mT, operand(133, 171).mT),
        "a long sum": (operand(1024, 4096), operand(4096, 128)),
        "a batch": (operand(6, 512, 256), operand(6, 256, 512)),
        "an odd batch by one matrix": (operand(2, 3, 65, 67), operand(67, 33)),
        "few rows": (operand(4, 1024), operand(1024, 2048)),
        "a vector": (operand(1000, 1024), operand(1024)),
    }
    for name, (a, b) in pairs.items():
        yield name, tilesmith.matmul(a, b, accuracy=kind.accuracy), a.double() @ b.double()
    for name in ("aligned", "odd"):
        a, b = pairs[name]
        packed = tilesmith.pack(b, accuracy=kind.accuracy)
        yield f"{name}, B packed", tilesmith.matmul(a, packed), a.double() @ b.double()


def _layers(kind: Kind, operand: Operand) -> Iterator[Checked]:
    """`linear` and the layer, with all that follows a product, and their gradients."""
    x, weight, bias, residual = operand(1000, 512), operand(1024, 512) / 16, operand(1024), operand(1000, 1024)
    sums = functional.linear(x.double(), weight.double(), bias.double())
    for activation in ("relu", "gelu", "gelu_tanh", "silu"):
        result = tilesmith.linear(x, weight, bias, activation=activation, accuracy=kind.accuracy)
        yield f"linear, {activation}", result, ACTIVATED[activation](sums)
    result = tilesmith.linear(x, weight, bias, activation="gelu", residual=residual, accuracy=kind.accuracy)
    yield "linear, gelu and a residual", result, functional.gelu(sums) + residual.double()

    layer = tilesmith.nn.Linear(512, 1024, device=x.device, dtype=kind.dtype, accuracy=kind.accuracy)
    exact = functional.linear(x.double(), layer.weight.double(), layer.bias.double())
    yield "a layer", layer.eval().requires_grad_(False)(x), exact
    odd = tilesmith.nn.Linear(101, 77, device=x.device, dtype=kind.dtype, activation="silu", accuracy=kind.accuracy)
    yield from _trained("an odd layer", odd, operand(5, 19, 101), operand(5, 19, 77), functional.silu)


def _overridden(kind: Kind, operand: Operand) -> Iterator[Checked]:
    """torch's own products."""
    a, b, c = operand(1024, 512), operand(512, 1024), operand(1024, 1024)
    left, right = operand(3, 65, 129), operand(3, 129, 34)
    calls: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
        "torch.matmul": (torch.matmul, (a, b)),
        "torch.addmm": (partial(torch.addmm, beta=0.5), (c, a, b)),
        "torch.addmm of a row": (torch.addmm, (c[0], a, b)),
        "torch.bmm": (torch.bmm, (left, right)),
    }
    for name, (call, operands) in calls.items():
        with tilesmith.override(accuracy=kind.accuracy):
            result = call(*operands)
        assert tilesmith.stats().calls("tilesmith") == 1, f"{name}\n{tilesmith.stats()}"
        yield name, result, call(*(x.double() for x in operands))
    layer = nn.Linear(512, 1024, device=a.device, dtype=kind.dtype)
    yield from _trained("nn.Linear", layer, a, c, around=tilesmith.override(accuracy=kind.accuracy))
    assert tilesmith.stats().calls("tilesmith") == 3, tilesmith.stats()


def _trained(
    name: str,
    layer: nn.Linear,
    x: Tensor,
    towards: Tensor,
    activated: Callable[[Tensor], Tensor] = ACTIVATED[None],
    around: AbstractContextManager[None] | None = None,
) -> Iterator[Checked]:
    """The output of a layer, and the gradients of all that went into it."""
    leaves = (x.requires_grad_(True), layer.weight, layer.bias)
    with around or nullcontext():
        output = layer(x)
        gradients = torch.autograd.grad(output, leaves, towards)
    in_double = [leaf.detach().double().requires_grad_(True) for leaf in leaves]
    exact = activated(functional.linear(*in_double))
    yield name, output, exact
    exact_gradients = torch.autograd.grad(exact, in_double, towards.double())
    for of, *results in zip(("x", "the weight", "the bias"), gradients, exact_gradients, strict=True):
        yield f"{name}, the gradient of {of}", results[0], results[1]


def forbid_nvrtc() -> None:
    """From now on its bindings cannot be imported. They have not been before."""
    bindings = "cuda.bindings.nvrtc"
    assert bindings not in sys.modules
    sys.modules[bindings] = None  # type: ignore[assignment]
    try:
        compiler.version()
    except UnavailableError:
        return
    raise AssertionError("NVRTC is still here")


def build(file: Path, arch: str) -> None:
    """Has `tilesmith build` make an archive, of all kernels but those that this process has not loaded."""
    used = {kernel for kernel, _ in loading._functions}
    command = importlib.import_module("tilesmith.cli.build_run")
    command.catalogue = lambda gpu: [kernel for kernel in catalogue(gpu) if kernel in used]  # type: ignore[attr-defined]
    done = CliRunner().invoke(command_line, ["build", "--arch", arch, "--output", str(file), "--json"])
    assert done.exit_code == 0, done.output
    built = json.loads(done.stdout)["kernels"]
    assert built == len(used), f"{len(used) - built} kernels of plans are not in the catalogue"


def digest(result: Tensor) -> str:
    return hashlib.sha256(result.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def main() -> None:
    kind, how, *file = sys.argv[1:]
    is_built_ahead = how == "built_ahead"
    if is_built_ahead:
        forbid_nvrtc()
    else:
        archive.installed = lambda arch: []
    digests = {name: digest(result) for name, result in results(kind, "cuda").items()}
    assert bool(list(cache.entries())) != is_built_ahead
    for path in file:
        build(Path(path), installed(0).arch)
    print(json.dumps(digests))


if __name__ == "__main__":
    main()
