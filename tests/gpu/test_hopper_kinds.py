"""The `hopper` kernels on a product of each kind, and on random ones: exactly, since sums of small integers have one
value in float32, whatever their order."""

import itertools

import pytest
import torch
from guarded import Guarded, contiguous_strides
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilesmith
from tilesmith.core import device
from tilesmith.core.problem import Problem
from tilesmith.kernels.hopper import family as hopper
from tilesmith.runtime.executor import compiled

Configuration = hopper.Configuration
HALF = [torch.bfloat16, torch.float16]


def integers(shape: tuple[int, ...], dtype: torch.dtype, transposed: bool = False) -> torch.Tensor:
    sizes = (*shape[:-2], shape[-1], shape[-2]) if transposed else shape
    values = torch.randint(-2, 3, sizes, device="cuda").to(dtype)
    return values.mT if transposed else values


def assert_exact(a: torch.Tensor, b: torch.Tensor, c: Configuration, out_dtype: torch.dtype) -> None:
    """Twice, into poisoned memory with guards around it, and with guards around the operands."""
    guarded_a, guarded_b = Guarded.like(a), Guarded.like(b)
    expected = (a.float() @ b.float()).to(out_dtype)
    out = Guarded.empty(expected.shape, contiguous_strides(expected.shape), out_dtype)
    problem = Problem.of(guarded_a.tensor, guarded_b.tensor, out_dtype=out_dtype, out=out.tensor)
    assert hopper.unsuited(problem, device.installed(0), c) is None
    run = compiled(hopper.plan(problem, device.installed(0), c), 0)
    for _ in range(2):
        out.tensor.fill_(float("nan"))
        run(guarded_a.tensor, guarded_b.tensor, out.tensor)
        torch.testing.assert_close(out.tensor, expected, rtol=0, atol=0)
    for guarded in (guarded_a, guarded_b, out):
        guarded.assert_outside_untouched()


KINDS = {
    "pairs": ((520, 328), (328, 776), Configuration(128, 256, cluster=2)),
    "pairs, odd": ((521, 327), (327, 775), Configuration(128, 256, cluster=2)),
    "more tiles than blocks": ((128 * 40 + 8, 72), (72, 1032), Configuration(128, 256, cluster=2)),
    "more tiles than blocks, odd": ((128 * 20 + 1, 391), (391, 2057), Configuration(128, 256)),
    "three consumers": ((192 * 30 + 8, 328), (328, 1496), Configuration(192, 176, cluster=2)),
    "three consumers, batch": ((5, 1096, 200), (5, 200, 1096), Configuration(192, 160, cluster=2)),
    "three consumers, split": ((584, 1000), (1000, 520), Configuration(192, 160, split_k=3)),
    "split": ((200, 1000), (1000, 136), Configuration(128, 96, split_k=3)),
    "split, pairs, odd": ((201, 999), (999, 137), Configuration(64, 64, cluster=2, split_k=5)),
    "one step": ((128 * 300, 64), (64, 264), Configuration(128, 256)),
    "one step, odd": ((2001, 63), (63, 261), Configuration(128, 128)),
    "one step, several columns": ((128 * 140, 40), (40, 1032), Configuration(64, 192)),
    "few rows": ((16, 1000), (1000, 520), Configuration(64, 16, cluster=2, swap_ab=True)),
    "few rows, odd": ((17, 999), (999, 521), Configuration(128, 32, split_k=3, swap_ab=True)),
    "one row": ((1, 1000), (1000, 520), Configuration(64, 16, swap_ab=True)),
    "one column": ((520, 1000), (1000, 1), Configuration(64, 8)),
    "K is one": ((130, 1), (1, 264), Configuration(128, 64)),
    "batch": ((3, 136, 200), (3, 200, 264), Configuration(128, 128)),
    "batch, odd": ((3, 137, 199), (3, 199, 263), Configuration(128, 128, cluster=2)),
    "batch of one step": ((300, 136, 64), (300, 64, 72), Configuration(128, 64)),
    "broadcast": ((2, 1, 3, 136, 72), (4, 1, 72, 264), Configuration(64, 128)),
    "broadcast, odd, split": ((2, 1, 3, 135, 523), (4, 1, 523, 77), Configuration(64, 32, split_k=2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_every_layout_and_type(kind: str) -> None:
    a_shape, b_shape, c = KINDS[kind]
    for i, (a_transposed, b_transposed) in enumerate(itertools.product((False, True), repeat=2)):
        dtype = HALF[i % 2]
        a, b = integers(a_shape, dtype, a_transposed), integers(b_shape, dtype, b_transposed)
        assert_exact(a, b, c, dtype if i < 2 else torch.float32)
        if i in (0, 3):
            assert_exact(a, b, c, torch.float32 if i < 2 else dtype)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    m=st.one_of(st.integers(1, 20), st.integers(1, 600)),
    k=st.one_of(st.integers(1, 70), st.integers(1, 3000)),
    n=st.one_of(st.integers(1, 20), st.integers(1, 600)),
    batch=st.sampled_from([(), (), (2,), (3, 2)]),
    pads=st.tuples(*[st.sampled_from([0, 0, 1, 3, 8])] * 2),
    shifts=st.tuples(*[st.sampled_from([0, 0, 1, 8])] * 2),
    transposed=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(HALF),
)
def test_random_shapes_and_strides(
    m: int,
    k: int,
    n: int,
    batch: tuple[int, ...],
    pads: tuple[int, int],
    shifts: tuple[int, int],
    transposed: tuple[bool, bool],
    dtype: torch.dtype,
) -> None:
    operands = []
    for (rows, columns), pad, shift, across in zip(((m, k), (k, n)), pads, shifts, transposed, strict=True):
        stored = (columns, rows) if across else (rows, columns)
        strides = (*(stored[0] * (stored[1] + pad) for _ in batch[:1]), stored[1] + pad, 1)
        shape = (*batch[:1], *stored)
        guarded = Guarded.empty(shape, strides, dtype, shift)
        guarded.tensor.copy_(torch.randint(-2, 3, shape, device="cuda"))
        operands.append(guarded)
    a, b = (x.tensor.mT if across else x.tensor for x, across in zip(operands, transposed, strict=True))
    if len(batch) == 2:
        a = a.unsqueeze(1).expand(batch[0], batch[1], m, k)
    result = tilesmith.matmul(a, b.unsqueeze(1) if len(batch) == 2 else b, out_dtype=torch.float32)
    expected = a.float() @ (b.unsqueeze(1) if len(batch) == 2 else b).float()
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
