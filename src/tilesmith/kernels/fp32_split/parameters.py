"""What kernels are told of the terms that they multiply."""

from dataclasses import dataclass
from typing import Annotated, Any

from tilesmith.core.params import Address, Int32, ParameterBlock, Pointer, to
from tilesmith.kernels.fp32_split.scales import RowScales
from tilesmith.kernels.fp32_split.terms import Split


@dataclass(frozen=True, kw_only=True)
class TermParameters(ParameterBlock):
    """Those that such kernels have in common."""

    depth: Int32
    term_depth: Int32  # of the terms, which lie one behind the other along K
    a_scales: RowScales
    b_scales: RowScales
    a_range_stats: Annotated[Pointer, to("tilesmith::RangeStats", "kernels/fp32_split/range_check.cuh")]
    b_range_stats: Annotated[Pointer, to("tilesmith::RangeStats", "kernels/fp32_split/range_check.cuh")]
    range_check: Annotated[Pointer, to("tilesmith::RangeCheck", "kernels/fp32_split/range_check.cuh")]
    a_range_stats_count: Int32
    b_range_stats_count: Int32
    a_k_chunks: Int32  # that K was cut into where it was split into terms
    b_k_chunks: Int32


def of_split(split: tuple[Split, Split], range_check: int) -> dict[str, Any]:
    """Those that do not depend on the scheme. `range_check`: where the workspace has it."""
    a, b = (each.findings for each in split)
    return {
        "depth": split[1].terms.matrix.columns,
        "term_depth": split[1].terms.term_depth,
        "a_range_stats": Address(a.buffer, a.range_stats),
        "b_range_stats": Address(b.buffer, b.range_stats),
        "range_check": Address("workspace", range_check),
        "a_range_stats_count": a.blocks,
        "b_range_stats_count": b.blocks,
        "a_k_chunks": a.row_block.k_chunks,
        "b_k_chunks": b.row_block.k_chunks,
    }
