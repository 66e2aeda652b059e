"""The constants of gemm.cu, gemm_fp32.cu and gemm_fp32_rs.cu."""

from dataclasses import dataclass, fields
from typing import Any, Final

from tilesmith.core.device import Device
from tilesmith.core.params import KernelConstants, KernelEnum
from tilesmith.kernels.element import CUDA_TYPES
from tilesmith.kernels.epilogue import EpilogueConstants
from tilesmith.kernels.fp32_split import terms
from tilesmith.kernels.hopper.layout import (
    MAX_PROMOTED_TILE_N,
    OPERAND_BYTES,
    SHORT_K,
    Configuration,
    Layout,
    Scale,
    b_extent,
    cluster_tiles,
    clusters_at_once,
    clusters_of,
    residual_vector,
    shared_memory,
    staging,
    stationary_b,
)
from tilesmith.kernels.output import Store

# Registers of a producer's and of a consumer's thread, by consumers. They come from the pool of a block that started
# with registers_per_sm / threads for each.
_REGISTERS: Final = {1: (40, 232), 2: (40, 232), 3: (32, 160)}
_RS_REGISTERS: Final = {1: (24, 248), 2: (24, 240)}


class Runs(KernelEnum):
    """When a launch multiplies: of two, one for ordinary values and one for all others, the range statistics decide
    which one. The first one reads them, and leaves the range check to the second."""

    ALWAYS = 0
    IF_IN_RANGE = 1
    IF_OUT_OF_RANGE = 2


@dataclass(frozen=True, kw_only=True)
class GemmConstants(KernelConstants):
    """The constants of gemm.cu, and of the others those that they share with it."""

    Output: str
    tile_m: int
    tile_n: int
    b_extent: int
    stages: int
    cluster: int
    stationary_b: bool
    a_mn_major: bool
    b_mn_major: bool
    batch_dims: int
    out_batch_dims: int
    out_along_m: bool
    out_store: Store
    out_is_partial: bool
    out_by_warp: bool
    chunk: int
    store_buffers: int
    store_waits: bool
    producer_registers: int
    consumer_registers: int
    epilogue: EpilogueConstants
    residual_vector: int

    @classmethod
    def of(cls, layout: Layout, device: Device, c: Configuration) -> "GemmConstants":
        p, a, b, out = layout.problem, layout.a, layout.b, layout.out
        own = staging(layout, c)
        registers = (_RS_REGISTERS if layout.a_is_rs else _REGISTERS)[c.consumers]
        has_rest = clusters_of(layout, c) > clusters_at_once(layout, device, c)
        return GemmConstants(
            Output=CUDA_TYPES[out.dtype],
            tile_m=c.tile_m,
            tile_n=c.tile_n,
            b_extent=b_extent(layout, c),
            stages=shared_memory(layout, device, c)[0],
            cluster=c.cluster,
            stationary_b=stationary_b(layout, device, c),
            a_mn_major=a.mn_major,
            b_mn_major=b.mn_major,
            batch_dims=len(p.batch),
            out_batch_dims=len(out.batch),
            out_along_m=out.along_m,
            out_store=own.store,
            out_is_partial=out.is_partial,
            out_by_warp=own.by_warp,
            chunk=own.chunk,
            store_buffers=own.buffers,
            store_waits=out.dtype.itemsize == OPERAND_BYTES and has_rest,
            producer_registers=registers[0],
            consumer_registers=registers[1],
            epilogue=EpilogueConstants.of(layout.epilogue),
            residual_vector=residual_vector(layout),
        )


@dataclass(frozen=True, kw_only=True)
class RsConstants(GemmConstants):
    """The constants of gemm_fp32_rs.cu."""

    terms: int
    scale: Scale
    runs: Runs
    with_least_product: bool
    b_k_chunks: int

    @classmethod
    def of_fp32(cls, layout: Layout, device: Device, c: Configuration, runs: Runs) -> "RsConstants":
        return RsConstants(
            **_fields(GemmConstants.of(layout, device, c)),
            terms=layout.terms,
            scale=layout.scale,
            runs=runs,
            with_least_product=_with_least_product(layout),
            b_k_chunks=terms.k_chunks(layout.b.matrix, layout.problem.batch),
        )


@dataclass(frozen=True, kw_only=True)
class TermConstants(RsConstants):
    """The constants of gemm_fp32.cu."""

    a_terms: int
    b_terms: int
    max_promoted_tile_n: int = MAX_PROMOTED_TILE_N
    a_k_chunks: int
    skips_zeros: bool
    a_block_rows: int
    b_block_rows: int
    extents_m: int
    extents_n: int

    @classmethod
    def of_fp32(cls, layout: Layout, device: Device, c: Configuration, runs: Runs) -> "TermConstants":
        a, b, skips_zeros = layout.a.matrix, layout.b.matrix, layout.skips_zeros(c)
        tiles_m, tiles_n = cluster_tiles(layout.problem, c)
        return TermConstants(
            **_fields(RsConstants.of_fp32(layout, device, c, runs)),
            a_terms=layout.terms_of_each[0],
            b_terms=layout.terms_of_each[1],
            a_k_chunks=terms.k_chunks(a, layout.problem.batch),
            skips_zeros=skips_zeros,
            a_block_rows=terms.block_rows(a) if skips_zeros else 1,
            b_block_rows=terms.block_rows(b) if skips_zeros else 1,
            extents_m=tiles_m if skips_zeros else 1,
            extents_n=tiles_n if skips_zeros else 1,
        )


def _fields(value: KernelConstants) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _with_least_product(layout: Layout) -> bool:
    """Whether the product of the smallest of two terms each counts."""
    return layout.terms_of_each == (2, 2) and layout.problem.k <= SHORT_K
