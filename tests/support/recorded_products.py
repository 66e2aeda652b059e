"""Small products of every kind of kernel, whose results on an H200 are kept in `recorded_products.npz`.

`scripts/record_products.py` writes that file. Operands are made of random integers and exact powers of two, so that
every machine makes the same ones.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import STAND_IN, Device, named
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels import FAMILIES
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.mma import fp32 as fp32_mma
from tilesmith.kernels.mma import int8 as int8_mma
from tilesmith.kernels.mma.family import HALF
from tilesmith.kernels.mma.tiles import LARGE_TILES_OF_HALVES, TILES_OF_PAIRS, TILES_OF_TERMS, Cut

FILE: Final = Path(__file__).with_name("recorded_products.npz")
Values = Literal["plain", "graded", "special", "triangles"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One product, and the plan that computes it."""

    name: str  # that it was recorded by, and that its operands are drawn from: an older family's may be in it
    shape: tuple[int, int, int]  # M, K, N
    # The name of a family, which takes what it thinks best; a tile of mma's, which is chosen on other GPUs alone.
    plan: str | hopper.Configuration | Cut
    layout: str = "nn"  # of A and B; in capitals with a stride that TMA cannot read
    dtype: torch.dtype = torch.float32
    b_dtype: torch.dtype | None = None
    out_dtype: torch.dtype | None = None
    accuracy: Accuracy = "fp32"
    values: Values = "plain"
    batch: int = 0

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        m, k, n = self.shape
        draw = np.random.Generator(np.random.PCG64([*self.name.encode()]))
        a = self._matrix(draw, m, k, self.layout[0], self.dtype)
        b = self._matrix(draw, k, n, self.layout[1], self.b_dtype or self.dtype)
        if self.values == "graded":
            powers = torch.from_numpy(np.exp2(np.linspace(-20, 20, k).round())).float()
            a.mul_(powers)
            b.div_(powers[:, None])
        if self.values == "special":
            a[0, 1], a[m // 2, 0], b[2, 0], b[0, n - 1] = float("inf"), float("nan"), float("-inf"), 0.0
        if self.values == "triangles":
            a.copy_(a.tril())
            b.copy_(b.tril())
        return a, b

    def _matrix(
        self, draw: np.random.Generator, rows: int, columns: int, layout: str, dtype: torch.dtype
    ) -> torch.Tensor:
        sizes = (columns, rows) if layout in "tT" else (rows, columns)
        shape = (self.batch, *sizes) if self.batch else sizes
        pitch = sizes[1] + (1 if layout.isupper() else -sizes[1] % 16)
        stored = torch.zeros((*shape[:-1], pitch), dtype=dtype)[..., : sizes[1]]
        if dtype.is_floating_point:
            exponents = draw.integers(-3, 3, shape)
            values: npt.NDArray[np.float64] = draw.integers(-(2**24), 2**24, shape) * np.exp2(exponents - 24.0)
            stored.copy_(torch.from_numpy(values).to(dtype))
        else:
            stored.copy_(torch.from_numpy(draw.integers(-100, 100, shape)).to(dtype))
        return stored.mT if layout in "tT" else stored

    def planned(self, a: torch.Tensor, b: torch.Tensor, device: Device) -> Plan:
        """For operands like those of `operands`, on any device."""
        problem = Problem.of(
            *(a, b),
            accuracy=self.accuracy,
            out_dtype=self.out_dtype,
            may_mix=True,
            skips_zeros=self.values == "triangles",
        )
        if isinstance(self.plan, hopper.Configuration):
            assert hopper.rejects(problem, device) is None
            assert (reason := hopper.unsuited(problem, device, self.plan)) is None, reason
            return hopper.plan(problem, device, self.plan)
        if isinstance(self.plan, Cut):
            plans = {torch.float32: fp32_mma.plan, torch.int8: int8_mma.plan}
            return plans.get(self.dtype, HALF.plan)(problem, device, self.plan)
        family = next(each for each in FAMILIES if each.name == self.plan)
        return min(family.candidates(problem, device), key=lambda each: each.cycles).plan()

    def on_cpu(self) -> tuple[Plan, torch.Tensor, torch.Tensor]:
        """With its plan for an H200."""
        a, b = self.operands()
        return self.planned(a, b, named(STAND_IN)), a, b


_C: Final = hopper.Configuration
_LARGE: Final = Cut(LARGE_TILES_OF_HALVES[1])
_PAIRS: Final = Cut(TILES_OF_PAIRS[2])
_TERMS: Final = Cut(TILES_OF_TERMS[2])
_BF16, _FP16, _FP32 = torch.bfloat16, torch.float16, torch.float32

PRODUCTS: Final[tuple[Recorded, ...]] = (
    *(
        Recorded(f"simt {str(dtype).removeprefix('torch.')}", (37, 50, 29), "simt", dtype=dtype, accuracy="ieee")
        for dtype in (_FP32, torch.float64, _FP16, _BF16, torch.int64)
    ),
    Recorded("simt int8", (33, 70, 40), "simt", layout="tn", dtype=torch.int8, out_dtype=torch.int32),
    Recorded("simt batch", (20, 33, 21), "simt", layout="nt", accuracy="ieee", batch=3),
    *(Recorded(f"exact {layout}", (37, 70, 29), "fp64_mma", layout=layout) for layout in ("nn", "NT", "tN", "tt")),
    Recorded("exact batch", (20, 33, 21), "fp64_mma", batch=3),
    Recorded("exact special", (20, 33, 21), "fp64_mma", values="special"),
    Recorded("thin", (5, 300, 70), "skinny"),
    Recorded("thin columns", (70, 300, 3), "skinny", layout="tN"),
    Recorded("outer", (70, 20, 40), "outer"),
    Recorded("outer odd", (70, 31, 41), "outer", layout="tN"),
    Recorded("dot", (40, 1500, 1), "gemv"),
    Recorded("dot parts", (3, 20000, 1), "gemv"),
    *(Recorded(f"bfloat16 {x}", (70, 200, 40), _C(128, 64), layout=x, dtype=_BF16) for x in ("nn", "nt", "tn", "tt")),
    *(Recorded(f"float16 {x}", (70, 200, 24), _C(64, 32), layout=x, dtype=_FP16) for x in ("nt", "tn")),
    Recorded("float16 realigned", (70, 131, 24), _C(64, 32), layout="NT", dtype=_FP16),
    Recorded("bfloat16 cluster", (150, 300, 24), _C(128, 32, cluster=2), dtype=_BF16),
    Recorded("bfloat16 split", (40, 600, 24), _C(64, 32, split_k=2), dtype=_BF16),
    Recorded("bfloat16 transposed", (8, 200, 150), _C(128, 8, swap_ab=True), layout="nt", dtype=_BF16),
    Recorded("bfloat16 wide", (20, 100, 150), _C(64, 256), dtype=_BF16, out_dtype=_FP32),
    Recorded("bfloat16 batch", (20, 100, 33), _C(64, 64), dtype=_BF16, batch=3),
    *(Recorded(f"planes {layout}", (70, 200, 40), _C(128, 64), layout=layout) for layout in ("nn", "Nt", "tN", "TT")),
    Recorded("planes cluster", (150, 300, 24), _C(128, 32, cluster=2)),
    Recorded("planes split", (40, 600, 24), _C(64, 32, split_k=2)),
    Recorded("planes transposed", (8, 200, 150), _C(128, 8, swap_ab=True), layout="nt"),
    Recorded("planes 192", (20, 100, 150), _C(64, 192)),
    Recorded("planes short", (20, 40, 150), _C(64, 192)),
    Recorded("planes batch", (20, 100, 33), _C(64, 64), batch=3),
    Recorded("planes graded", (70, 200, 40), _C(128, 64), values="graded"),
    Recorded("planes special", (70, 200, 40), _C(128, 64), values="special"),
    Recorded("planes triangles", (150, 150, 20), _C(128, 32), values="triangles"),
    Recorded("raw", (70, 200, 40), _C(128, 64, rs=True)),
    Recorded("raw cluster split", (150, 1100, 24), _C(128, 32, cluster=2, split_k=2, rs=True)),
    Recorded("raw graded", (70, 200, 40), _C(128, 64, rs=True), values="graded"),
    Recorded("raw special", (70, 200, 40), _C(64, 64, rs=True), values="special"),
    Recorded("tf32", (70, 200, 40), _C(128, 64), accuracy="tf32"),
    Recorded("tf32 graded", (70, 200, 40), _C(128, 64), accuracy="tf32", values="graded"),
    *(
        Recorded(f"tf32 wgmma {layout}", (70, 200, 40), "hopper_tf32", layout=layout, accuracy="tf32")
        for layout in ("nt", "tt", "nn", "tn", "NT", "TN")
    ),
    Recorded("tf32 wgmma short sums", (70, 1500, 40), "hopper_tf32", layout="tt", accuracy="tf32"),
    *(Recorded(f"half mma {x}", (37, 300, 29), "half_mma", layout=x, dtype=_BF16) for x in ("nn", "NT")),
    Recorded("tf32 mma", (37, 300, 29), "tf32_mma", accuracy="tf32"),
    *(Recorded(f"large halves {x}", (70, 200, 40), _LARGE, layout=x, dtype=_BF16) for x in ("nn", "nt", "tn", "tt")),
    Recorded("large halves realigned split", (70, 131, 24), Cut(_LARGE.tile, 2), layout="NT", dtype=_FP16),
    *(Recorded(f"terms {layout}", (70, 200, 40), _TERMS, layout=layout) for layout in ("nn", "Nt", "tN", "TT")),
    Recorded("terms long", (40, 1000, 24), _TERMS),
    Recorded("terms split", (40, 600, 24), Cut(_TERMS.tile, 2)),
    Recorded("terms batch", (20, 100, 33), _TERMS, batch=3),
    Recorded("terms graded", (70, 200, 40), _TERMS, values="graded"),
    Recorded("terms special", (70, 200, 40), _TERMS, values="special"),
    *(Recorded(f"one term {x}", (70, 200, 40), _LARGE, layout=x, accuracy="tf32") for x in ("Nt", "tN")),
    Recorded("one term split", (40, 600, 24), Cut(_LARGE.tile, 2), accuracy="tf32"),
    Recorded("one term graded", (70, 200, 40), _LARGE, accuracy="tf32", values="graded"),
    Recorded("int8 pairs", (70, 200, 40), _PAIRS, layout="nt", dtype=torch.int8, out_dtype=torch.int32),
    Recorded("int8 pairs turned split", (70, 601, 40), Cut(_PAIRS.tile, 2), layout="tN", dtype=torch.int8),
    Recorded("mixed float16", (70, 200, 40), _C(128, 64), b_dtype=_FP16),
    Recorded("mixed bfloat16", (70, 200, 40), _C(128, 64), dtype=_BF16, b_dtype=_FP32),
)


def bits(tensor: torch.Tensor) -> npt.NDArray[np.generic]:
    """A tensor's elements as integers."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    found: npt.NDArray[np.generic] = tensor.contiguous().view(integers[tensor.itemsize]).numpy()
    return found


def load() -> dict[str, npt.NDArray[np.generic]]:
    """The bits of the results on an H200, by name."""
    with np.load(FILE) as found:
        return dict(found)
