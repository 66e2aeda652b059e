"""Choosing how to do a product."""

from tilesmith.planner.choose import candidates, choose, is_possible, packing, rejections

__all__ = ["candidates", "choose", "is_possible", "packing", "rejections"]
