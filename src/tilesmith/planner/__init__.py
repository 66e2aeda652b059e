"""Choosing how to do a product."""

from tilesmith.planner.choose import choose

__all__ = ["choose"]
