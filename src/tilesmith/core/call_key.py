"""The key of a call: all of its tensors that a plan depends on, as one tuple.

It is made for each product, so nothing in it is an object of ours, and nothing is packed to be unpacked again.
"""

from collections.abc import Hashable

import torch

CallKey = tuple[Hashable, ...]


def call_key(
    how: Hashable,
    a: torch.Tensor,
    b: torch.Tensor,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    added: torch.Tensor | None = None,
) -> CallKey:
    """The key of a product, and of the sum with `added` if there is one. `how` is what else decides.

    >>> a, b = torch.ones(2, 3), torch.ones(3, 4)
    >>> call_key("fp32", a, b) == call_key("fp32", a.clone(), b.clone())
    True
    >>> call_key("fp32", a, b) == call_key("fp32", a, torch.ones(4, 3).T)
    False
    """
    key: CallKey = (
        how,
        out_dtype,
        a.shape,
        a.stride(),
        a.dtype,
        a.data_ptr() & 15,
        a.get_device(),
        b.shape,
        b.stride(),
        b.dtype,
        b.data_ptr() & 15,
        b.get_device(),
    )
    if added is not None:
        key += (added.shape, added.stride(), added.dtype, added.data_ptr() & 15, added.get_device())
    if out is not None:
        key += ("out", out.shape, out.stride(), out.dtype, out.data_ptr() & 15, out.get_device())
    return key
