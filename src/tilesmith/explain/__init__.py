"""Plans as people read them: the work, the launches, the tiles, the time, and what was not taken."""

from tilesmith.explain.explanation import Explanation

__all__ = ["Explanation"]
