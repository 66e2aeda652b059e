"""The kernels of mma_fp32.cu, and their launches."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import MAX_BATCH_DIMS, TILE_K
from tilesmith.core.plan import Kernel, KernelLaunch
from tilesmith.core.problem import ALIGNMENT, Problem
from tilesmith.kernels import output
from tilesmith.kernels.blank import blank
from tilesmith.kernels.element import CUDA_TYPES
from tilesmith.kernels.fp32_split.parameters import TermParameters, of_split
from tilesmith.kernels.fp32_split.scales import RowScales, Scale
from tilesmith.kernels.fp32_split.terms import SHORT_K, Scheme, Schemes, Split
from tilesmith.kernels.mma import launch
from tilesmith.kernels.mma.operands import Lines, Pair, Placed
from tilesmith.kernels.mma.tiles import FULL_RANGE_TILE, MMA, Cut, Tile

_ALIGNED: Final = tuple(Lines(along_k, ALIGNMENT) for along_k in (True, False))


@dataclass(frozen=True, kw_only=True)
class Constants(launch.Constants):
    """The constants of mma_fp32.cu."""

    terms: int  # of each operand
    sum_k: int  # of K, whose products the tensor cores sum; 0 for all
    with_least_product: bool  # of two terms, that of the second ones counts too
    scale: Scale


@dataclass(frozen=True, kw_only=True)
class Parameters(TermParameters, launch.Parameters):
    """The parameters of mma_fp32.cu."""


def product_launch(
    p: Problem,
    cut: Cut,
    scheme: Scheme,
    split: tuple[Split, Split],
    range_check: int,
    partials: output.Output | None,
    device: Device,
) -> KernelLaunch:
    """The launch that multiplies terms, if the range check is in their favour. `p`: stored by rows."""
    operands: Pair = Placed.copied(split[0].terms), Placed.copied(split[1].terms)
    scale = Scale.EXPONENTS if scheme.full_range else Scale.FACTORS
    parameters = Parameters(
        **launch.parameters_of(p, cut, operands, split[0].terms.term_depth, partials),
        **of_split(split, range_check),
        a_scales=RowScales.of(split[0], scale),
        b_scales=RowScales.of(split[1], scale),
    )
    has_epilogue = partials is None and p.epilogue is not None
    lines = operands[0].lines, operands[1].lines
    kernel = _kernel(cut.tile, *lines, scheme, sum_k(scheme, device), _has_least_product(scheme, p.k), has_epilogue)
    return launch.launch_of(kernel, parameters, p, cut)


def _has_least_product(scheme: Scheme, k: int) -> bool:
    """In short sums, what two terms leave out may be more than what torch rounds off."""
    return scheme.terms == 2 and not scheme.full_range and k <= SHORT_K


def sum_k(scheme: Scheme, device: Device) -> int:
    """One term has lost more than tensor cores cut off. Hopper's cut off less than those of other GPUs."""
    if scheme.terms == 1:
        return 0
    if scheme.terms > 2:
        return MMA[2]
    return TILE_K if device.capability == (9, 0) else TILE_K // 2


def kernels(device: Device, schemes: Schemes, tiles: tuple[Tile, ...]) -> Iterator[Kernel]:
    """All that products by these schemes may take. `tiles`: for ordinary values."""
    either = (False, True)
    for scheme, own_tiles in ((schemes.ordinary, tiles), (schemes.full_range, (FULL_RANGE_TILE,))):
        leasts = {_has_least_product(scheme, k) for k in (SHORT_K, SHORT_K + 1)}
        for tile, a, b, least, has_epilogue in itertools.product(own_tiles, _ALIGNED, _ALIGNED, sorted(leasts), either):
            yield _kernel(tile, a, b, scheme, sum_k(scheme, device), least, has_epilogue)


@cache
def _kernel(tile: Tile, a: Lines, b: Lines, scheme: Scheme, sum_k: int, least: bool, has_epilogue: bool) -> Kernel:
    single = torch.float32
    constants = Constants(
        Output=CUDA_TYPES[single],
        **launch.constants_of(CUDA_TYPES[scheme.dtype], single, single, tile, a, b, has_epilogue),
        terms=scheme.terms,
        sum_k=sum_k,
        with_least_product=least,
        scale=Scale.EXPONENTS if scheme.full_range else Scale.FACTORS,
    )
    return Kernel.of(
        "mma_fp32",
        "kernels/mma/mma_fp32.cu",
        constants,
        blank(Parameters, **_blank_arrays()),
        threads=tile.threads,
        shared_bytes=tile.shared_bytes(scheme.dtype.itemsize, scheme.terms),
        parts=(f"kernels/mma/parts/{'one_term' if scheme.terms == 1 else 'several_terms'}.cuh",),
    )


def _blank_arrays() -> dict[str, Any]:
    scales = RowScales(first=None, pitch=0, matrices=(0,) * MAX_BATCH_DIMS)
    return launch.blank_arrays() | {"a_scales": scales, "b_scales": scales}
