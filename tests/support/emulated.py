"""Products by the emulator, against what they are."""

import math
from collections.abc import Mapping, Sequence

import torch

from tilesmith.core import device
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.emulator import run
from tilesmith.kernels import FAMILIES
from tilesmith.kernels.hopper import family as hopper

H200 = device.named("h200")


def hopper_plan(
    a: torch.Tensor, b: torch.Tensor, c: hopper.Configuration, out_dtype: torch.dtype | None = None
) -> Plan:
    """A given configuration of the product of Hopper's tensor cores."""
    problem = Problem.of(a, b, out_dtype=out_dtype)
    assert hopper.unsuited(problem, H200, c) is None
    return hopper.plan(problem, H200, c)


def plan_named(a: torch.Tensor, b: torch.Tensor, name: str, gpu: str = "h200") -> Plan:
    """The first candidate whose name begins with `name`, also of a fallback where others can do it."""
    problem, own = Problem.of(a, b), device.named(gpu)
    able = (family for family in FAMILIES if family.rejects(problem, own) is None)
    found = (each for family in able for each in family.candidates(problem, own) if each.name.startswith(name))
    return next(found).plan()


def integers(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    """Small ones: sums of their products are exact in float32, whatever their order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


def placed(values: torch.Tensor, strides: Sequence[int], offset: int = 0) -> torch.Tensor:
    """The values with these strides, from `offset` elements after an aligned address on, in the midst of NaNs, or of
    what integers have instead. Those along a stride of 0 are the first one."""
    steps = list(zip(values.shape, strides, strict=True))
    reach = sum((size - 1) * stride for size, stride in steps) + 1
    storage = torch.full((offset + reach + 24,), math.nan if values.is_floating_point() else 77, dtype=values.dtype)
    assert storage.data_ptr() % 16 == 0
    view = storage.as_strided(values.shape, tuple(strides), offset)
    distinct = tuple(slice(0, 1) if stride == 0 else slice(None) for _, stride in steps)
    view[distinct] = values[distinct]
    return view


def empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    """NaNs with these strides, in the midst of others."""
    return placed(torch.full(tuple(shape), math.nan, dtype=dtype), strides, offset)


def assert_nothing_else_written(out: torch.Tensor) -> None:
    """What lies between and around the elements of an `empty` tensor."""
    storage = torch.empty(0, dtype=out.dtype).set_(out.untyped_storage())
    is_own = torch.zeros(storage.numel(), dtype=torch.bool)
    is_own.as_strided(out.shape, out.stride(), out.storage_offset()).fill_(True)
    assert storage[~is_own].isnan().all()


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
