"""The parts that the kernels of this family are assembled from: one header of each kind, as the constants ask."""

from collections.abc import Iterator
from typing import Final

from tilesmith.kernels.epilogue import Activation
from tilesmith.kernels.hopper.constants import CommonConstants, GemmConstants, RsConstants, TermConstants
from tilesmith.kernels.output import Store

_STORERS: Final = {
    Store.BOXES: "store_boxes",
    Store.VECTORS: "store_vectors",
    Store.LINES: "store_lines",
    Store.DIRECT: "store_direct",
}


def parts_of(c: CommonConstants) -> tuple[str, ...]:
    """The headers that define what a kernel's source file only names, in the order in which it includes them.

    >>> import torch
    >>> from tilesmith.core.device import named
    >>> from tilesmith.core.problem import Problem
    >>> from tilesmith.kernels.hopper import family
    >>> a = torch.empty(512, 512, dtype=torch.bfloat16, device="meta")
    >>> kernel = family.plan(Problem.of(a, a), named("h200"), family.Configuration(128, 128)).product.kernel
    >>> assert parts_of(kernel.constants) == kernel.parts
    >>> kernel.parts[1]
    'kernels/hopper/parts/store_boxes.cuh'
    """
    return tuple(f"kernels/hopper/parts/{name}.cuh" for name in _names(c))


def _names(c: CommonConstants) -> Iterator[str]:
    yield "wide_results" if c.Output == "float" else "narrow_results"
    yield _STORERS[c.out_store]
    yield _delivery(c)
    yield "stationary_b" if c.stationary_b else "streamed_b"
    if isinstance(c, RsConstants) and not isinstance(c, TermConstants):
        return  # A is split in registers: products and sums of its own
    yield "turned_mma" if isinstance(c, GemmConstants) and c.tf32 and c.a_mn_major else "mma"
    yield "short_sums" if c.short_sums else "single_steps" if c.only_stores else "whole_sums"
    yield "store_meanwhile" if c.store_waits else "store_at_once"


def _delivery(c: CommonConstants) -> str:
    if isinstance(c, RsConstants):
        return "deliver_scaled"
    if not c.epilogue.any:
        return "deliver"
    if c.activation is not Activation.NONE:
        return "deliver_activated"
    return "deliver_with_residual" if c.residual_vector else "deliver_biased"
