"""What a kernel of this family is compiled for: the traits of a product, which are all that is no size, and a tile."""

from typing import Final, NamedTuple

import torch

from tilesmith.core.params import TILE_K
from tilesmith.kernels import operand, output
from tilesmith.kernels.epilogue import Activation
from tilesmith.kernels.fp32_split.scales import Scale
from tilesmith.kernels.fp32_split.terms import EXTENT_BYTES
from tilesmith.kernels.operand import round_up
from tilesmith.kernels.output import Staging

WGMMA_M: Final = 64
MAX_PROMOTED_TILE_N: Final = 192  # columns of a tile that has two sets of sums
OPERAND_BYTES: Final = 2
MAX_EXTENTS: Final = 512  # of rows and columns of tiles, in shared memory
_MAX_STAGES: Final = 24
_MIN_STAGES: Final = 2
_MAX_CONSUMERS: Final = 2  # whose threads have registers for anything
_SWIZZLE_LINES: Final = 8  # the swizzle's pattern repeats after these
_BARRIER_BYTES: Final = 16  # of a stage
_CHECK_BYTES: Final = 48  # of a range check that is made meanwhile
_SCALE_BYTES: Final = 4  # of a column
_BIAS_BYTES: Final = 4
_MAX_TILE_N_IN_SHORT_LINES: Final = 128  # of tiles of single terms: wider ones load columns that they do not use


class Traits(NamedTuple):
    """Everything of a product but its sizes."""

    operand: torch.dtype  # that the tensor cores multiply
    a_terms: int
    b_terms: int
    scale: Scale  # NONE of 16-bit operands
    rs: bool  # A is float32, and split in registers
    a_mn_major: bool
    b_mn_major: bool
    batch_dims: int  # none, one, or all that a kernel walks
    out_batch_dims: int
    out: torch.dtype
    out_along_m: bool
    out_aligned: bool
    only_stores: bool  # K is one step: the output's way to memory decides
    has_epilogue: bool
    activation: Activation
    residual_vector: int  # elements of a residual that are read at once; 0 if there is none
    with_least_product: bool = False  # of two terms, the product of the second ones counts too

    @property
    def terms(self) -> int:
        """The most that an operand has."""
        return max(self.a_terms, self.b_terms)

    @property
    def is_one_term(self) -> bool:
        """Operands are float32, and each of them is one term."""
        return self.scale is Scale.FACTORS and self.terms == 1

    def b_extent(self, tile_n: int) -> int:
        """The columns of B that are loaded for a tile: more than the tile has, if that makes lines of full width."""
        max_in_short_lines = TILE_K if self.terms > 1 else _MAX_TILE_N_IN_SHORT_LINES
        return round_up(tile_n, TILE_K) if self.b_mn_major and tile_n > max_in_short_lines else tile_n

    def b_atom_width(self, extent: int) -> int:
        """The length of a line of B in shared memory; 0 if a tile of this extent has none."""
        return operand.atom_width(self.b_mn_major, OPERAND_BYTES, extent)

    @property
    def min_stages(self) -> int:
        """The fewest that a ring works with."""
        return _MIN_STAGES if self.rs else max(_MIN_STAGES, self.terms + 1)

    def unsuited(self, tile: "Tile") -> str | None:
        """Why no kernel for such products can have this tile; None if one can."""
        if tile.consumers > _MAX_CONSUMERS and (reason := self._needs_registers):
            return f"a tile of {tile.m} rows has no registers for {reason}"
        extent = self.b_extent(tile.n)
        if self.b_atom_width(extent) == 0:
            return f"{tile.n} columns are too few for a B that is stored by rows"
        if (TILE_K if self.b_mn_major else extent) % (_SWIZZLE_LINES * tile.cluster):
            return f"a tile of {tile.n} columns cannot be shared by {tile.cluster} blocks"
        return None

    @property
    def _needs_registers(self) -> str | None:
        """What takes more of them than 16-bit products do."""
        if self.scale is not Scale.NONE:
            return "float32 operands"
        if self.residual_vector:
            return "a residual"
        is_wide = self.out.itemsize > OPERAND_BYTES
        return "float32 results in lines that are not aligned" if is_wide and not self.out_aligned else None

    def staging(self, tile_n: int) -> Staging:
        """How tiles of this width pass through shared memory."""
        terms = self.terms > 1
        return output.staging(
            self.out,
            along_m=self.out_along_m,
            aligned=self.out_aligned,
            tile_n=tile_n,
            by_rows=self.only_stores,
            overlapped=terms,
            lean=terms and not self.only_stores,
        )


class Tile(NamedTuple):
    """What a block computes, and how."""

    m: int
    n: int
    cluster: int  # tiles one below the other that share columns of B
    stationary_b: bool = False  # a block keeps to its columns, and loads their tile of B once
    skips_zeros: bool = False  # it leaves out steps along K in which an operand is zero
    store_waits: bool = False  # it stores results while the next tile is multiplied

    @property
    def consumers(self) -> int:
        return self.m // WGMMA_M

    @property
    def threads(self) -> int:
        return (self.consumers + 1) * 128


def has_short_sums(tile_m: int, tile_n: int) -> bool:
    """Whether a thread has registers for the total of several sums of such a tile."""
    return tile_m <= _MAX_CONSUMERS * WGMMA_M and tile_n <= MAX_PROMOTED_TILE_N


def shared_memory(traits: Traits, tile: Tile, most: int) -> tuple[int, int]:
    """The stages that fit in a block's shared memory, `most` bytes, and the bytes that they and the rest take."""
    own = traits.staging(tile.n)
    once = tile.consumers * own.bytes(traits.out, traits.out_along_m)
    if traits.scale is not Scale.NONE:
        once += tile.consumers * tile.n * _SCALE_BYTES
    if traits.has_epilogue and not traits.out_along_m:
        once += tile.consumers * tile.n * _BIAS_BYTES
    if traits.scale is Scale.FACTORS and not traits.rs:
        once += _CHECK_BYTES
    once += tile.skips_zeros * MAX_EXTENTS * EXTENT_BYTES
    a_bytes, b_bytes = (rows * TILE_K * OPERAND_BYTES for rows in (tile.m, traits.b_extent(tile.n)))
    if traits.rs:
        a_bytes, b_bytes = tile.m * TILE_K * torch.float32.itemsize, traits.terms * b_bytes
    stage = a_bytes + b_bytes + _BARRIER_BYTES
    if tile.stationary_b:
        stage, once = stage - b_bytes, once + traits.terms * b_bytes
    stages = min((most - once) // stage, _MAX_STAGES)
    # Loading many short tiles ahead would put off the stores of the first ones.
    if traits.only_stores:
        stages = min(stages, 3 * traits.terms)
    return stages, stages * stage + once
