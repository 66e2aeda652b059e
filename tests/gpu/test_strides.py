"""Any strides: slices with steps, transposes, expansions, offsets, in operands and output."""

import pytest
import torch
from guarded import Guarded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import batches, strides_for

import tilesmith
from tilesmith.core.problem import OUT_DTYPES

sizes = st.one_of(st.integers(1, 9), st.integers(1, 150))


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data(), m=sizes, k=sizes, n=sizes, batch=batches())
def test_any_strides(
    dtype: torch.dtype, data: st.DataObject, m: int, k: int, n: int, batch: tuple[list[int], list[int]]
) -> None:
    out_dtype = data.draw(st.sampled_from(OUT_DTYPES[dtype]))
    low = 0 if dtype == torch.uint8 else -2

    def operand(shape: list[int]) -> Guarded:
        strides, shift = data.draw(strides_for(shape, may_expand=True))
        guarded = Guarded.empty(shape, strides, dtype, shift)
        # Small integers: every type's arithmetic is exact on them, but for the last rounding.
        values = torch.randint(low, 3, shape, device="cuda").to(dtype)
        distinct = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
        guarded.tensor[distinct] = values[distinct]
        return guarded

    a, b = operand([*batch[0], m, k]), operand([*batch[1], k, n])
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    expected = torch.matmul(a.tensor.cpu().to(wide), b.tensor.cpu().to(wide)).to(out_dtype)

    result = tilesmith.matmul(a.tensor, b.tensor, out_dtype=out_dtype)
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0)

    strides, shift = data.draw(strides_for(list(expected.shape), may_expand=False))
    out = Guarded.empty(expected.shape, strides, out_dtype, shift)
    tilesmith.matmul(a.tensor, b.tensor, out_dtype=out_dtype, out=out.tensor)
    torch.testing.assert_close(out.tensor.cpu(), expected, rtol=0, atol=0)
    for guarded in (a, b, out):
        guarded.assert_outside_untouched()
