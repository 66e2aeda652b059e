"""The launch that multiplies: the parameters of gemm.cu, gemm_fp32.cu and gemm_fp32_rs.cu."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final

from tilesmith.core.device import Device
from tilesmith.core.params import (
    MAX_BATCH_DIMS,
    TILE_K,
    Address,
    Aligned,
    Int32,
    Int32s,
    Int64,
    Int64s,
    MapSlot,
    ParameterBlock,
    Pointer,
    to,
)
from tilesmith.core.plan import Kernel, KernelLaunch, Wgmma
from tilesmith.kernels.epilogue import EpilogueParameters
from tilesmith.kernels.fp32_split.parameters import TermParameters, of_split
from tilesmith.kernels.fp32_split.scales import RowScales, Scale
from tilesmith.kernels.fp32_split.terms import Findings, Split
from tilesmith.kernels.hopper import catalogue
from tilesmith.kernels.hopper.assembly import parts_of
from tilesmith.kernels.hopper.constants import CommonConstants, GemmConstants, RsConstants, Runs, TermConstants
from tilesmith.kernels.hopper.layout import (
    Configuration,
    Layout,
    cluster_tiles,
    clusters_at_once,
    clusters_of,
    column_group,
)
from tilesmith.kernels.hopper.tiles import min_sums
from tilesmith.kernels.hopper.traits import Tile, Traits, shared_memory
from tilesmith.kernels.output import Store

_ZEROS: Final = (0,) * MAX_BATCH_DIMS
_ONES: Final = (1,) * MAX_BATCH_DIMS
_RASTER_GROUP: Final = 8  # clusters of tile rows that are done together


@dataclass(frozen=True, kw_only=True)
class OutputLines(ParameterBlock):
    """The lines of one matrix of the output, for stores that TMA cannot do: they may start at any element."""

    first: Annotated[Pointer, to("Output")]
    stride: Int64
    count: Int32
    length: Int32


@dataclass(frozen=True, kw_only=True)
class Schedule(ParameterBlock):
    """The work of a persistent grid: every tile of every matrix, K possibly cut into parts. Tiles that run together
    belong to one matrix and one part as long as there are any."""

    tiles_m: Int32  # in tiles of a whole cluster
    tiles_n: Int32
    split_k: Int32
    batches: Int32
    k_steps: Int32  # of a part
    longer_parts: Int32  # the first ones, which have one step more
    sum_steps: Int32  # of a sum of the tensor cores at most, where they are short: see short_sums.cuh
    raster_group: Int32  # tile rows that are done together
    column_group: Int32  # columns of tiles that are done before the next ones, where blocks keep to theirs: ColumnWalk


@dataclass(frozen=True, kw_only=True)
class RowBlockExtents(ParameterBlock):
    """The extents of row blocks of an operand's rows, each with its K chunks."""

    found: Annotated[Pointer, to("const tilesmith::Extent", "kernels/fp32_split/extent.cuh")]
    row_blocks: Int32
    rows: Int32  # of a row block
    k_chunks: Int32

    @classmethod
    def of(cls, findings: Findings | None, rows: int) -> "RowBlockExtents":
        if findings is None or findings.extents is None:
            return _NO_EXTENTS
        own = findings.row_block
        return cls(
            found=Address("workspace", findings.extents),
            row_blocks=-(-rows // own.rows),
            rows=own.rows,
            k_chunks=own.k_chunks,
        )


_NO_EXTENTS: Final = RowBlockExtents(found=None, row_blocks=0, rows=0, k_chunks=0)


@dataclass(frozen=True, kw_only=True)
class _Common(ParameterBlock):
    """The first parameters of all three kernels."""

    a: MapSlot
    b: MapSlot
    out: MapSlot
    out_lines: OutputLines
    out_is_partial: Int32  # in the workspace, a matrix for each part of K and each of the batch
    out_batch_stride: Int64s
    schedule: Schedule
    batch_size: Int32s
    a_moves: Int32s  # 0 where the batch shares the operand, 1 elsewhere
    b_moves: Int32s


@dataclass(frozen=True, kw_only=True)
class GemmParameters(_Common):
    """The parameters of gemm.cu."""

    epilogue: Annotated[EpilogueParameters, Aligned(64)]


@dataclass(frozen=True, kw_only=True)
class _WithRows(_Common):
    m: Int32


@dataclass(frozen=True, kw_only=True)
class Fp32Parameters(TermParameters, _WithRows):
    """The parameters of gemm_fp32.cu and gemm_fp32_rs.cu."""

    # What the product finds out of rows for every split, if it splits A: a_range_stats then are its own.
    split_exponents: Annotated[Pointer, to("int")]
    split_pitch: Int32
    a_extents: RowBlockExtents  # if zeros are skipped
    b_extents: RowBlockExtents
    epilogue: Annotated[EpilogueParameters, Aligned(64)]


def _fp32(
    layout: Layout, traits: Traits, device: Device, c: Configuration, split: tuple[Split, Split]
) -> Fp32Parameters:
    scales = split[0].findings.scales
    return Fp32Parameters(
        **_of_tiles(layout, traits, device, c),
        **_of_batch(layout),
        m=layout.problem.m,
        **of_split(split, layout.range_check),
        **_of_scheme(layout, traits, split),
        split_exponents=Address("workspace", scales.k_chunk_exponents) if traits.rs else None,
        split_pitch=scales.k_chunk_pitch,
    )


def _of_tiles(layout: Layout, traits: Traits, device: Device, c: Configuration) -> dict[str, Any]:
    """The parameters that depend on tiles and terms."""
    p, out, own = layout.problem, layout.out, traits.staging(c.tile_n)
    is_boxed = own.store is Store.BOXES
    tiles_m, tiles_n = cluster_tiles(p, c)
    k_steps, longer_parts = divmod(layout.k_steps, c.split_k)
    return {
        "a": layout.a.tensor_map(c.tile_m, 1, p.batch, traits.batch_dims),
        "b": layout.b.tensor_map(traits.b_extent(c.tile_n), c.cluster, p.batch, traits.batch_dims),
        "out": out.tensor_map(own, traits.out_batch_dims) if is_boxed else None,
        "out_lines": OutputLines(
            first=None if is_boxed else Address(out.buffer, out.offset),
            stride=out.line_stride,
            count=out.lines,
            length=out.length,
        ),
        "schedule": Schedule(
            tiles_m=tiles_m,
            tiles_n=tiles_n,
            split_k=c.split_k,
            batches=p.batches,
            k_steps=k_steps,
            longer_parts=longer_parts,
            sum_steps=-(-layout.k_steps // min_sums(p, device)),
            # Where the output's way to memory decides: that prefers to be written along rows.
            raster_group=1 if p.k <= TILE_K and not out.is_partial else _RASTER_GROUP,
            column_group=column_group(p, device, c.tile_n),
        ),
    }


def _of_batch(layout: Layout) -> dict[str, Any]:
    """The parameters that depend on neither."""
    batch, out = layout.problem.batch, layout.out
    return {
        "out_is_partial": int(out.is_partial),
        "out_batch_stride": _padded(out.batch_strides),
        "batch_size": batch + _ONES[len(batch) :],
        "a_moves": _padded(tuple([int(stride != 0) for stride in layout.a.batch_strides])),
        "b_moves": _padded(tuple([int(stride != 0) for stride in layout.b.batch_strides])),
        "epilogue": EpilogueParameters.of(layout.epilogue, MAX_BATCH_DIMS),
    }


def _of_scheme(layout: Layout, traits: Traits, split: tuple[Split, Split]) -> dict[str, Any]:
    """The parameters that depend on the scheme of the terms."""
    p, (a, b) = layout.problem, split
    is_full_range = traits.scale is Scale.EXPONENTS
    return {
        "a_scales": RowScales.of(a, traits.scale),
        "b_scales": RowScales.of(b, traits.scale),
        "a_extents": RowBlockExtents.of(None if is_full_range else a.findings, p.a.rows),
        "b_extents": RowBlockExtents.of(None if is_full_range else b.findings, p.b.columns),
    }


def _padded(values: tuple[int, ...]) -> tuple[int, ...]:
    return values + _ZEROS[len(values) :]


def product_launch(
    layout: Layout,
    device: Device,
    c: Configuration,
    runs: Runs = Runs.ALWAYS,
    *,
    ordinary: KernelLaunch | None = None,
) -> KernelLaunch:
    """The launch that multiplies. `runs`: when it does, if the operands are float32. `ordinary`: the one for
    ordinary values, if this one is for all others."""
    traits, tile = layout.traits, layout.tile(device, c)
    at_once, all_clusters = clusters_at_once(layout.problem, device, tile), clusters_of(layout, c)
    if catalogue.waits(traits, tile, all_clusters > at_once):
        tile = tile._replace(store_waits=True)
    parameters: ParameterBlock
    if layout.split is None:
        parameters = GemmParameters(**_of_tiles(layout, traits, device, c), **_of_batch(layout))
    elif ordinary is None:
        parameters = _fp32(layout, traits, device, c, layout.split)
    else:
        changed = _of_tiles(layout, traits, device, c) | _of_scheme(layout, traits, layout.split)
        parameters = ordinary.parameters.changed(**changed)
    return KernelLaunch(
        _kernel(traits, tile, runs, device.shared_bytes_per_block, parameters.declared()),
        parameters,
        grid=(min(all_clusters, at_once) * c.cluster, 1, 1),
        cluster=c.cluster,
        awaits_predecessor=True,
        multiplies=True,
    )


def every_kernel(device: Device, parameters: dict[bool, tuple[str, tuple[str, ...]]]) -> Iterator[Kernel]:
    """All that multiply. `parameters`: how C++ declares them, and the files that they need, by whether operands are
    float32."""
    for traits, tile in catalogue.every_tile(device):
        runs = Runs.IF_OUT_OF_RANGE if traits.scale is Scale.EXPONENTS else Runs.IF_IN_RANGE
        if traits.scale is Scale.NONE or (traits.rs and traits.scale is Scale.FACTORS):
            runs = Runs.ALWAYS
        declared = parameters[traits.scale is not Scale.NONE]
        yield _kernel(traits, tile, runs, device.shared_bytes_per_block, declared)


@cache
def _kernel(traits: Traits, tile: Tile, runs: Runs, shared_limit: int, declared: tuple[str, tuple[str, ...]]) -> Kernel:
    stages, shared_bytes = shared_memory(traits, tile, shared_limit)
    constants: CommonConstants
    if traits.scale is Scale.NONE:
        name, constants = "gemm", GemmConstants.of_gemm(traits, tile, stages)
    elif traits.rs:
        name, constants = "gemm_fp32_rs", RsConstants.of_fp32(traits, tile, stages, runs)
    else:
        name, constants = "gemm_fp32", TermConstants.of_fp32(traits, tile, stages, runs)
    wgmma = Wgmma(tile.n, traits.operand, traits.a_mn_major, traits.b_mn_major, a_in_registers=traits.rs)
    source, parts = f"kernels/hopper/{name}.cu", parts_of(constants)
    return Kernel(name, source, constants, *declared, tile.threads, shared_bytes, wgmma, parts)
