"""The kernels of this family: a finite set, which can be compiled ahead.

Which tiles there are for a kind of product was found by leaving out, one after the other, those that random products
miss the least, as long as none of them is expected to lose more than a few percent: docs/notes/2026-11-catalogue.md.
The tiles that a product of any size needs, the smallest, are always there.
"""

import itertools
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import MAX_BATCH_DIMS
from tilesmith.kernels.epilogue import Activation
from tilesmith.kernels.fp32_split.scales import Scale
from tilesmith.kernels.fp32_split.terms import SCHEMES
from tilesmith.kernels.hopper.traits import OPERAND_BYTES, Tile, Traits, shared_memory

Shape = tuple[int, int, int]  # rows and columns of a tile, and the blocks that share its columns


def _tiles(text: str) -> frozenset[Shape]:
    """Tiles by their names: 128x64c2 has 128 rows, 64 columns, and is shared by two blocks."""
    names = (name.replace("c", "x").split("x") for name in text.split())
    return frozenset((int(m), int(n), int(c[0]) if c else 1) for m, n, *c in names)


# By what a kernel stores: along the rows of a tile, in lines that are aligned or not (odd), or along its columns.
_NARROW: Final = {  # operands of 16 bits, and results of as many
    "plain": _tiles(
        "64x8 64x16 64x32 64x32c2 64x64 64x64c2 64x96 64x96c2 64x128 64x128c2 64x192 64x192c2 64x256 128x32 128x64 "
        "128x64c2 128x96 128x96c2 128x128 128x128c2 128x160 128x160c2 128x192 128x192c2 128x224 128x224c2 128x256 "
        "128x256c2 192x128 192x128c2 192x160 192x160c2 192x176c2"
    ),
    "batched": _tiles(
        "64x8 64x16 64x32 64x32c2 64x64 64x64c2 64x96 64x128 64x128c2 64x192 64x192c2 64x256 128x32 128x64 "
        "128x64c2 128x128 128x128c2 128x160c2 128x192 128x192c2 128x224c2 128x256 128x256c2 192x128 192x128c2 "
        "192x160c2 192x176c2"
    ),
    "odd": _tiles(
        "64x8 64x16 64x32 64x64 64x64c2 64x96 64x96c2 64x128 64x128c2 64x192 64x192c2 64x256 128x32 128x64 "
        "128x64c2 128x96c2 128x128 128x128c2 128x160c2 128x192 128x192c2 128x224c2 128x256 128x256c2 192x128 "
        "192x128c2 192x160c2 192x176"
    ),
    "across": _tiles(
        "64x8 64x16 64x32 64x64c2 64x96c2 128x32 128x64c2 128x96c2 128x128c2 128x160c2 128x192c2 192x128c2"
    ),
    "odd across": _tiles("64x8 64x16 64x32 64x64c2 128x32 128x64 128x160c2 128x192c2"),
    "short": _tiles("64x16 64x32 64x64 64x128 64x192 64x256 128x32 128x64 128x128 128x192 128x256 192x128 192x160"),
    "odd short": _tiles("64x8 64x16 64x32 64x64 64x128 64x192 128x32 128x64 128x128 128x192 128x256 192x128"),
    "many dims": _tiles("64x16 64x64 128x64 128x128 128x256"),
    "rare": _tiles("64x16 64x64 128x128"),
    "bias": _tiles(
        "64x8 64x16 64x32 64x64 64x64c2 64x128c2 64x192 128x64 128x64c2 128x128 128x128c2 128x192 128x192c2 128x256 "
        "128x256c2 192x128"
    ),
    "odd bias": _tiles("64x8 64x16 64x32 64x64 64x128c2 128x64 128x128 128x192 128x256 128x256c2"),
    "across bias": _tiles("64x8 64x16 64x32 64x64c2 128x64c2 128x96c2"),
    "residual": _tiles("64x16 64x64 64x128c2 128x64 128x128 128x256 128x256c2"),
    "odd residual": _tiles("64x16 64x64 128x64 128x256"),
    "activation": _tiles("64x16 64x64 128x64 128x128 128x256 128x256c2"),
    "odd activation": _tiles("64x16 128x64 128x256"),
}
_WIDE: Final = {  # operands of 16 bits, and sums of 32
    "plain": _tiles(
        "64x8 64x16 64x32 64x64 64x64c2 64x96 64x96c2 64x128c2 64x192 64x192c2 64x256c2 128x64c2 128x128 128x128c2 "
        "128x160c2 128x192 128x192c2 128x256 128x256c2 192x128 192x176c2"
    ),
    "odd": _tiles("64x16 64x64 128x128 128x256c2"),
    "across": _tiles(
        "64x8 64x16 64x32 64x64 64x96c2 64x128 64x192 64x256c2 128x64c2 128x96 128x128 128x128c2 128x192c2 128x256c2"
    ),
    "odd across": _tiles("64x16 64x64 128x128"),
    "rare": _tiles("64x16 64x64 128x128"),
}
_ONE_TERM: Final = {  # float32 operands that are one term each
    "plain": _tiles(
        "64x16 64x32 64x96 64x128 64x192 64x256 128x64 128x96 128x128 128x128c2 128x160 128x160c2 128x192 128x192c2 "
        "128x224 128x256 128x256c2"
    ),
    "batched": _tiles(
        "64x16 64x32 64x64 64x128 64x192 128x32 128x64 128x96 128x128 128x128c2 128x160 128x160c2 128x192 128x224 "
        "128x224c2 128x256"
    ),
    "odd": _tiles("64x16 64x64 128x64c2 128x96 128x128 128x160 128x192 128x192c2 128x224 128x256 128x256c2"),
    "odd batched": _tiles("64x16 64x64 128x32 128x64 128x96 128x128 128x160 128x192 128x224 128x224c2 128x256"),
    "across": _tiles("64x16 64x64 128x32 128x64 128x96 128x160 128x160c2 128x192"),
    "short": _tiles("64x16 64x64 64x256 128x64 128x96 128x128 128x160 128x192 128x224 128x256"),
    "many dims": _tiles("64x16 64x64 128x128 128x256"),
    "rare": _tiles("64x16 128x128"),
    "bias": _tiles("64x16 128x64 128x128 128x192 128x256 128x256c2"),
    "odd bias": _tiles("64x16 128x64 128x128 128x256c2"),
    "across bias": _tiles("64x16 128x64"),
    "residual": _tiles("64x16 128x128 128x256c2"),
    "odd residual": _tiles("64x16 128x128"),
    "activation": _tiles("64x16 128x128 128x256"),
    "odd activation": _tiles("64x16 128x128"),
}
_TWO_TERMS: Final = {  # and two terms each
    "plain": _tiles(
        "64x16 64x64 64x64c2 64x96 64x128 64x192 128x64 128x64c2 128x96 128x112 128x112c2 128x128 128x128c2 128x144 "
        "128x144c2 128x160 128x176 128x176c2 128x192 128x192c2"
    ),
    "batched": _tiles("64x16 64x64 128x32 128x64 128x96 128x112 128x128 128x144 128x160 128x192"),
    "odd": _tiles(
        "64x16 64x64 64x64c2 64x96 64x192 128x64 128x64c2 128x96 128x96c2 128x112 128x128 128x128c2 128x144 128x160 "
        "128x176c2 128x192 128x192c2"
    ),
    "odd batched": _tiles("64x16 64x64 128x32 128x64 128x96 128x128 128x160 128x192"),
    "across": _tiles("64x16 64x64 64x64c2 128x64 128x64c2 128x144 128x192"),
    "many dims": _tiles("64x16 64x64 128x128 128x192"),
    "rare": _tiles("64x16 128x128"),
    "bias": _tiles("64x16 64x64 128x64 128x96 128x112 128x128 128x128c2 128x160 128x192 128x192c2"),
    "odd bias": _tiles("64x16 64x64 128x64 128x128 128x128c2 128x192c2"),
    "across bias": _tiles("64x16 64x64 128x64"),
    "residual": _tiles("64x16 64x64 128x64 128x128 128x128c2 128x192c2"),
    "odd residual": _tiles("64x16 64x64 128x128"),
    "activation": _tiles("64x16 128x64 128x128 128x128c2"),
    "odd activation": _tiles("64x16 128x128"),
}
_TWO_TERMS_LEAST: Final = {  # of which the product of the second ones counts too: K is short
    "plain": _tiles("64x16 64x64 128x64 128x96 128x112 128x128 128x144 128x160 128x176 128x192 128x192c2"),
    "batched": _tiles("64x16 64x64 128x32 128x64 128x96 128x128 128x144 128x160 128x192"),
    "odd": _tiles("64x16 64x64 128x64 128x96 128x128 128x160 128x192"),
    "odd batched": _tiles("64x16 64x64 128x64 128x96 128x128 128x160 128x192"),
    "across": _tiles("64x16 64x64 128x64 128x160"),
    "short": _tiles("64x16 64x64 128x64 128x128 128x160 128x192 128x224 128x256"),
    "many dims": _tiles("64x16 64x64 128x128"),
    "rare": _tiles("64x16 128x128"),
    "bias": _tiles("64x16 128x64 128x96 128x128 128x160 128x192"),
    "odd bias": _tiles("64x16 128x64 128x128 128x192"),
    "across bias": _tiles("64x16 128x64"),
    "residual": _tiles("64x16 128x64 128x128"),
    "odd residual": _tiles("64x16 128x128"),
    "activation": _tiles("64x16 128x128"),
    "odd activation": _tiles("64x16 128x128"),
}
_MIXED: Final = _tiles("64x16 128x64 128x128 128x192")  # two terms and one
_RS: Final = {  # A is split in registers. By whether lines of results are aligned, and run across tiles
    (True, False): _tiles("64x64 64x96 64x128 128x32 128x64 128x96 128x112 128x128 128x128c2"),
    (False, False): _tiles("64x96 128x64 128x96 128x128"),
    (True, True): _tiles("64x16 64x64 64x96 64x128 128x32c2 128x64 128x96 128x112 128x128 128x128c2"),
    (False, True): _tiles("128x64 128x96 128x128"),
}
_RS_LEAST: Final = _tiles("128x64 128x96 128x128")
_FULL_RANGE: Final = {False: _tiles("64x16 64x64 128x96"), True: _tiles("64x16 64x64 128x64")}  # of RS products or not
_SKIPPING_ZEROS: Final = _tiles("64x64 128x128 128x128c2 128x192c2")
_MIN_STATIONARY: Final = 128 * 128  # elements of a tile
_MIN_WAIT: Final = 64 * 128  # the same
_ALWAYS_WAIT: Final = 128 * 160


@cache
def offered(traits: Traits) -> frozenset[Shape]:
    """The tiles that there are for a kind of product."""
    if traits.scale is Scale.EXPONENTS:
        return _FULL_RANGE[traits.rs]
    if traits.rs:
        own = _RS[traits.out_aligned, traits.out_along_m]
        return own & _RS_LEAST if traits.with_least_product else own
    if traits.a_terms != traits.b_terms:
        return _MIXED if traits.out_aligned and not traits.out_along_m else _TWO_TERMS["rare"]
    tiles = _of_terms(traits)
    return tiles[_with_epilogue(traits) if traits.has_epilogue else _of_results(traits, tiles)]


def _of_terms(traits: Traits) -> dict[str, frozenset[Shape]]:
    if traits.scale is Scale.NONE:
        return _NARROW if traits.out.itemsize == OPERAND_BYTES else _WIDE
    if traits.terms == 1:
        return _ONE_TERM
    return _TWO_TERMS_LEAST if traits.with_least_product else _TWO_TERMS


def _of_results(traits: Traits, tiles: dict[str, frozenset[Shape]]) -> str:
    if traits.batch_dims == MAX_BATCH_DIMS:
        is_common = traits.out_aligned and not traits.out_along_m and traits.out_batch_dims == MAX_BATCH_DIMS
        return "many dims" if is_common and tiles is not _WIDE else "rare"
    if traits.out_along_m:
        return "across" if traits.out_aligned or "odd across" not in tiles else "odd across"
    if traits.only_stores:
        return "short" if traits.out_aligned else "odd short"
    kind, batched = ("plain", "batched") if traits.out_aligned else ("odd", "odd batched")
    return batched if traits.batch_dims and batched in tiles else kind


def _with_epilogue(traits: Traits) -> str:
    if traits.out_along_m:
        return "across bias"
    is_long = traits.activation is not Activation.NONE
    kind = "activation" if is_long else "residual" if traits.residual_vector else "bias"
    is_odd = not traits.out_aligned or (kind == "residual" and traits.residual_vector == 1)
    return f"odd {kind}" if is_odd else kind


def for_full_range(shape: Shape, rs: bool) -> Shape:
    """The tile of the full-range scheme where the ordinary one has this."""
    m, n, _ = shape
    fitting = [each for each in _FULL_RANGE[rs] if each[0] <= m and each[1] <= max(n, 16)]
    return max(fitting)


def waits(traits: Traits, tile: Tile, has_several: bool) -> bool:
    """Whether results are stored while the next tile is multiplied. `has_several`: a block has more than one."""
    if traits.out.itemsize != OPERAND_BYTES or tile.m * tile.n < _MIN_WAIT:
        return False
    return has_several or tile.m * tile.n >= _ALWAYS_WAIT


def may_stay_with_b(tile_m: int, tile_n: int) -> bool:
    """Whether a block may keep to its columns, and their tile of B."""
    return tile_m * tile_n >= _MIN_STATIONARY


def may_skip_zeros(shape: Shape) -> bool:
    return shape in _SKIPPING_ZEROS


# What follows enumerates all that these rules, and those of layout.py for traits, leave.

_FLAGS: Final = (False, True)


def every_tile(device: Device) -> Iterator[tuple[Traits, Tile]]:
    """Every kind of product with every tile that there is for it."""
    for traits in dict.fromkeys(_every_kind()):
        for m, n, cluster in sorted(offered(traits)):
            if traits.unsuited(Tile(m, n, cluster)) is None:
                for tile in _variants(traits, Tile(m, n, cluster)):
                    if shared_memory(traits, tile, device.shared_bytes_per_block)[0] >= traits.min_stages:
                        yield traits, tile


def _variants(traits: Traits, tile: Tile) -> Iterator[Tile]:
    may_stay = traits.only_stores and may_stay_with_b(tile.m, tile.n)
    for stationary_b in _FLAGS if may_stay else (False,):
        for store_waits in {waits(traits, tile, has_several) for has_several in _FLAGS}:
            yield tile._replace(stationary_b=stationary_b, store_waits=store_waits)
    is_ordinary = traits.scale is Scale.FACTORS and traits.a_terms == traits.b_terms == 2 and not traits.rs
    may_skip = is_ordinary and not traits.has_epilogue and not traits.only_stores and traits.batch_dims == 0
    if may_skip and may_skip_zeros((tile.m, tile.n, tile.cluster)):
        yield tile._replace(skips_zeros=True)


def _every_kind() -> Iterator[Traits]:
    for a_mn_major, b_mn_major in itertools.product(_FLAGS, _FLAGS):
        layout = {"a_mn_major": a_mn_major, "b_mn_major": b_mn_major}
        for dtype in (torch.bfloat16, torch.float16):
            operands = {"operand": dtype, "a_terms": 1, "b_terms": 1, "scale": Scale.NONE, "rs": False, **layout}
            yield from _narrow_results(dtype, operands)
            yield from _wide_results(operands)
        for schemes in SCHEMES.values():
            for scheme in (schemes.ordinary, schemes.full_range):
                scale = Scale.EXPONENTS if scheme.full_range else Scale.FACTORS
                pairs = {(scheme.terms, scheme.terms), (1, scheme.terms), (scheme.terms, 1)}
                for a_terms, b_terms in pairs if scale is Scale.FACTORS else {(scheme.terms, scheme.terms)}:
                    operands = {"operand": scheme.dtype, "a_terms": a_terms, "b_terms": b_terms, "scale": scale}
                    yield from _fp32_results({**operands, **layout})


def _narrow_results(dtype: torch.dtype, operands: dict[str, Any]) -> Iterator[Traits]:
    out = {**operands, "out": dtype}
    yield _kind(out, batch_dims=0)
    for aligned, along_m in itertools.product(_FLAGS, _FLAGS):
        yield _kind(out, 1, out_aligned=aligned, out_along_m=along_m)
        if not (aligned and along_m):
            yield _kind(out, MAX_BATCH_DIMS, out_aligned=aligned, out_along_m=along_m)
    yield _kind(out, only_stores=True)
    yield _kind(out, only_stores=True, out_aligned=False)
    yield from _with_epilogues(out, staged=True)


def _wide_results(operands: dict[str, Any]) -> Iterator[Traits]:
    out = {**operands, "out": torch.float32}
    for along_m in _FLAGS:
        yield _kind(out, 1, out_along_m=along_m)
        yield _kind(out, 1, out_along_m=along_m, out_aligned=False)
        yield _kind(out, MAX_BATCH_DIMS, 1, out_along_m=along_m)


def _fp32_results(operands: dict[str, Any]) -> Iterator[Traits]:
    is_full, is_mixed = operands["scale"] is Scale.EXPONENTS, operands["a_terms"] != operands["b_terms"]
    has_two = operands["a_terms"] == operands["b_terms"] == 2
    for least in ((is_full,) if is_full else _FLAGS) if has_two else (False,):
        out = {**operands, "out": torch.float32, "with_least_product": least}
        for rs in _FLAGS if operands["a_terms"] == operands["b_terms"] > 1 and not (is_full and has_two) else (False,):
            for along_m, aligned in itertools.product(_FLAGS, (False,) if is_full else _FLAGS):
                for batch_dims in (MAX_BATCH_DIMS,) if is_full or is_mixed else (1,) if rs else (1, MAX_BATCH_DIMS):
                    is_crossed = along_m and batch_dims == MAX_BATCH_DIMS  # aligned are parts of K alone
                    for out_dims in ({1} if is_crossed else {1, batch_dims}) if aligned else {batch_dims}:
                        yield _kind(out, batch_dims, out_dims, rs=rs, out_along_m=along_m, out_aligned=aligned)
        if not is_full and not is_mixed:
            yield _kind(out, batch_dims=0)
            yield _kind(out, batch_dims=0, out_aligned=False)
            if least == has_two:  # K is short
                yield _kind(out, only_stores=True)
        if not is_mixed:
            yield from _with_epilogues(out, staged=False, is_full=is_full)


def _with_epilogues(out: dict[str, Any], *, staged: bool, is_full: bool = False) -> Iterator[Traits]:
    """The kinds that layout.py stores directly."""
    batch_dims = MAX_BATCH_DIMS if is_full else 1
    a_mn_major, b_mn_major = out["a_mn_major"], out["b_mn_major"]
    for aligned in (False,) if is_full else _FLAGS:
        own = partial(_kind, out, batch_dims, out_aligned=aligned, has_epilogue=True)
        if not b_mn_major:
            yield own(out_along_m=True)
        if a_mn_major:
            continue
        yield own()
        for vector in (1, 8 if staged else 2) if aligned or is_full else (1,):
            yield own(residual_vector=vector)
        if not b_mn_major:
            for activation, vector in itertools.product(set(Activation) - {Activation.NONE}, (0, 1)):
                yield own(activation=activation, residual_vector=vector)


def _kind(given: dict[str, Any], batch_dims: int = 1, out_batch_dims: int | None = None, **more: Any) -> Traits:
    rest: dict[str, Any] = {
        "rs": False,
        "out_along_m": False,
        "out_aligned": True,
        "only_stores": False,
        "has_epilogue": False,
    }
    rest |= {"activation": Activation.NONE, "residual_vector": 0}
    dims = {"batch_dims": batch_dims, "out_batch_dims": batch_dims if out_batch_dims is None else out_batch_dims}
    return Traits(**{**rest, **dims, **given, **more})
