"""How often the GPU is filled with tiles, and how full it is at the end."""

from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.core.numbers import count, paragraph, percent
from tilesmith.core.plan import Plan, Tiling


@dataclass(frozen=True, slots=True)
class Waves:
    """Tiles in time."""

    units: int  # tiles of all matrices and parts of K, those included that only fill a cluster
    units_at_once: int
    waves: int
    in_last_wave: int
    last_wave_filled: float
    only_fill_clusters: int  # of the units
    parts_of_k: int  # that blocks of their own sum
    split_k: int  # of these, the parts whose sums meet in memory; the others meet in a cluster

    @classmethod
    def of(cls, plan: Plan, tiling: Tiling, tiles: int) -> "Waves":
        waves = -(-tiling.units // tiling.units_at_once)
        in_last_wave = tiling.units - max(waves - 1, 0) * tiling.units_at_once
        return cls(
            units=tiling.units,
            units_at_once=tiling.units_at_once,
            waves=waves,
            in_last_wave=in_last_wave,
            last_wave_filled=in_last_wave / tiling.units_at_once,
            only_fill_clusters=tiling.units - tiles * tiling.parts_of_k,
            parts_of_k=tiling.parts_of_k,
            split_k=plan.split_k,
        )

    def lines(self) -> Iterator[str]:
        if self.parts_of_k > 1:
            within = self.parts_of_k // self.split_k
            text = f"K is cut into {self.parts_of_k} parts, and each part of a tile has a block of its own"
            if within > 1:
                text += f"; a cluster of {within} blocks adds theirs"
            yield from paragraph(text)
        what = "parts of tiles" if self.parts_of_k > 1 else "tiles"
        text = f"{self.units:,} {what}, and room for {self.units_at_once:,} at once: {count(self.waves, 'wave')}"
        if self.waves > 1:
            text += f", the last with {self.in_last_wave:,}"
        yield from paragraph(f"{text} ({percent(self.last_wave_filled)} of the room)")
        if self.only_fill_clusters:
            yield from paragraph(f"{self.only_fill_clusters:,} of them lie outside of the output, to fill clusters")
