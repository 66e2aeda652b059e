"""Products by the emulator, against what they are."""

from collections.abc import Mapping

import torch

from tilesmith import device
from tilesmith.emulator import run
from tilesmith.kernels import sm90
from tilesmith.plan import Plan
from tilesmith.planner.choose import candidates
from tilesmith.problem import Problem

H200 = device.named("h200")


def sm90_plan(a: torch.Tensor, b: torch.Tensor, c: sm90.Configuration, out_dtype: torch.dtype | None = None) -> Plan:
    """A given configuration of the product of Hopper's tensor cores."""
    problem = Problem.of(a, b, out_dtype=out_dtype)
    assert sm90.unsuited(problem, H200, c) is None
    return sm90.plan(problem, H200, c)


def plan_named(a: torch.Tensor, b: torch.Tensor, name: str, gpu: str = "h200") -> Plan:
    """The first candidate whose name begins with `name`."""
    found = (c for c in candidates(Problem.of(a, b), device.named(gpu)) if c.name.startswith(name))
    return next(found).plan()


def integers(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    """Small ones: sums of their products are exact in float32, whatever their order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_exact(
    plan: Plan,
    a: torch.Tensor,
    b: torch.Tensor,
    seed: int | None = None,
    replaced: Mapping[str, str] | None = None,
) -> None:
    """Of integers."""
    out = run(plan, a, b, seed=seed, replaced=replaced)
    wide = torch.float64 if a.is_floating_point() else torch.int64
    expected = torch.matmul(a.to(wide), b.to(wide)).to(out.dtype)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


def assert_close(plan: Plan, a: torch.Tensor, b: torch.Tensor, most: float, seed: int | None = None) -> None:
    """The error of every element, of the size of its sum of absolute products."""
    out = run(plan, a, b, seed=seed)
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert ((out.double() - exact).abs() <= most * size).all()
