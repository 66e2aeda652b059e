"""Torch's own products by Tilesmith's kernels: a whole program, without a change to it."""

from tilesmith.override.registration import disable, enable, override
from tilesmith.override.stats import Stat, Stats, stats

__all__ = ["Stat", "Stats", "disable", "enable", "override", "stats"]
