"""The constants of gemm.cu, gemm_fp32.cu and gemm_fp32_rs.cu."""

from dataclasses import dataclass
from typing import Final

from tilesmith.core.params import KernelConstants, KernelEnum
from tilesmith.kernels.element import CUDA_TYPES
from tilesmith.kernels.epilogue import Activation, EpilogueConstants
from tilesmith.kernels.fp32_split.scales import Scale
from tilesmith.kernels.hopper.traits import MAX_EXTENTS, MAX_PROMOTED_TILE_N, Tile, Traits, has_short_sums
from tilesmith.kernels.output import Store

# Registers of a producer's and of a consumer's thread, by consumers. They come from the pool of a block that started
# with registers_per_sm / threads for each. A consumer that splits A needs many, but for full-range terms: their tiles
# are narrow.
_REGISTERS: Final = {1: (40, 232), 2: (40, 232), 3: (32, 160)}
_RS_REGISTERS: Final = {1: (24, 248), 2: (24, 240)}


class Runs(KernelEnum):
    """When a launch multiplies: of two, one for ordinary values and one for all others, the range statistics decide
    which one. The first one reads them, and leaves the range check to the second."""

    ALWAYS = 0
    IF_IN_RANGE = 1
    IF_OUT_OF_RANGE = 2


@dataclass(frozen=True, kw_only=True)
class CommonConstants(KernelConstants):
    """The constants that all of them have."""

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
    out_by_warp: bool
    chunk: int
    store_buffers: int
    store_waits: bool
    only_stores: bool  # K is one step
    short_sums: bool  # the tensor cores' sums may be parts of K, which are added with rounding
    producer_registers: int
    consumer_registers: int
    epilogue: EpilogueConstants
    activation: Activation
    residual_vector: int

    @classmethod
    def of(cls, traits: Traits, tile: Tile, stages: int) -> "CommonConstants":
        own = traits.staging(tile.n)
        needs_many = traits.rs and traits.scale is Scale.FACTORS
        registers = (_RS_REGISTERS if needs_many else _REGISTERS)[tile.consumers]
        return CommonConstants(
            Output=CUDA_TYPES[traits.out],
            tile_m=tile.m,
            tile_n=tile.n,
            b_extent=traits.b_extent(tile.n),
            stages=stages,
            cluster=tile.cluster,
            stationary_b=tile.stationary_b,
            a_mn_major=traits.a_mn_major,
            b_mn_major=traits.b_mn_major,
            batch_dims=traits.batch_dims,
            out_batch_dims=traits.out_batch_dims,
            out_along_m=traits.out_along_m,
            out_store=own.store,
            out_by_warp=own.by_warp,
            chunk=own.chunk,
            store_buffers=own.buffers,
            store_waits=tile.store_waits,
            only_stores=traits.only_stores,
            short_sums=traits.is_one_term and has_short_sums(tile.m, tile.n) and not traits.only_stores,
            producer_registers=registers[0],
            consumer_registers=registers[1],
            epilogue=EpilogueConstants(any=traits.has_epilogue),
            activation=traits.activation,
            residual_vector=traits.residual_vector,
        )


@dataclass(frozen=True, kw_only=True)
class GemmConstants(CommonConstants):
    """The constants of gemm.cu."""

    tf32: bool  # pairs of 16-bit numbers are float32

    @classmethod
    def of_gemm(cls, traits: Traits, tile: Tile, stages: int) -> "GemmConstants":
        return GemmConstants(**vars(CommonConstants.of(traits, tile, stages)), tf32=False)


@dataclass(frozen=True, kw_only=True)
class RsConstants(CommonConstants):
    """The constants of gemm_fp32_rs.cu."""

    terms: int
    scale: Scale
    runs: Runs
    with_least_product: bool

    @classmethod
    def of_fp32(cls, traits: Traits, tile: Tile, stages: int, runs: Runs) -> "RsConstants":
        return RsConstants(
            **vars(CommonConstants.of(traits, tile, stages)),
            terms=traits.terms,
            scale=traits.scale,
            runs=runs,
            with_least_product=traits.with_least_product,
        )


@dataclass(frozen=True, kw_only=True)
class TermConstants(RsConstants):
    """The constants of gemm_fp32.cu."""

    a_terms: int
    b_terms: int
    max_promoted_tile_n: int = MAX_PROMOTED_TILE_N
    skips_zeros: bool
    max_extents: int = MAX_EXTENTS

    @classmethod
    def of_fp32(cls, traits: Traits, tile: Tile, stages: int, runs: Runs) -> "TermConstants":
        return TermConstants(
            **vars(RsConstants.of_fp32(traits, tile, stages, runs)),
            a_terms=traits.a_terms,
            b_terms=traits.b_terms,
            skips_zeros=tile.skips_zeros,
        )
