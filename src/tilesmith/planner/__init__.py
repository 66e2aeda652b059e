"""Choosing how to do a product."""

from tilesmith.planner.choose import choose, is_possible, packing

__all__ = ["choose", "is_possible", "packing"]
