"""Torch's own products by Tilesmith's kernels: a whole program, without a change to it."""

from tilesmith.overriding.scope import disable, enable, override
from tilesmith.overriding.tallies import Stat, Stats, stats

__all__ = ["Stat", "Stats", "disable", "enable", "override", "stats"]
