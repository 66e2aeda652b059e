"""The kernel families: what each can do, and the plans it offers."""

from typing import Final

from tilesmith.kernels import dot, exact, simt, sm90, thin
from tilesmith.kernels.family import Family

FAMILIES: Final[tuple[Family, ...]] = (sm90.FAMILY, dot.FAMILY, thin.FAMILY, exact.FAMILY, simt.FAMILY)
