"""Products drawn at random, each from a seed and an index alone: sizes, types, layouts, batches, what is added, values.

Compiling is what takes the time of a run. So RELATED indices in a row have all in common that decides which kernels are
compiled, but for the sizes, which are near each other; values and factors are their own.

Nothing here needs memory or a GPU: `drawn` says what to multiply, `drawn_plans` how that would be planned, and
`drawn_calls` makes the tensors and multiplies them.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch

from tilesmith.bench.distributions import DISTRIBUTIONS
from tilesmith.core.accuracy import ACCURACIES, Accuracy
from tilesmith.core.checks import OUT_DTYPES, SIXTEEN_BITS, common_dtype, is_mixed, product_shape, result_dtype
from tilesmith.core.epilogue import ACTIVATIONS

# addmm: `beta * c + alpha * a @ b` by the executor. override: the same, and plain products, by torch's own operators.
Call = Literal["matmul", "linear", "addmm", "override"]
Shape = tuple[int, ...]

INTEGERS: Final = tuple(dtype for dtype in OUT_DTYPES if not dtype.is_floating_point)
_FLOATS: Final = {torch.float32: 46, torch.bfloat16: 18, torch.float16: 12, torch.float64: 7}
_IN_16_BITS: Final = ("uniform", "normal", "sparse", "rectified", "outliers", "cancelling", "infinities and NaNs")
_FACTORS: Final = (0.5, -2.0, 1.25, 3.0)

RELATED: Final = 8

_MAX_OUTPUT: Final = 2**22  # elements
_MAX_OPERAND: Final = 2**25
_MAX_FLOPS: Final = 2**35
_MAX_FLOPS_OF_CUDA_CORES: Final = 2**32


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor without its values: strides count elements, and so does the offset from an aligned address."""

    shape: Shape
    strides: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0

    @property
    def meta(self) -> torch.Tensor:
        """A tensor like it, without memory."""
        return torch.empty(1, dtype=self.dtype, device="meta").as_strided(self.shape, self.strides, self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One product, and all that a call says of it."""

    seed: int
    index: int
    call: Call
    a: Layout
    b: Layout  # of `linear` the transposed weight
    accuracy: Accuracy | None
    out_dtype: torch.dtype | None
    out: Layout | None  # None: the call allocates it
    packed: tuple[bool, bool]
    bias: Layout | None
    residual: Layout | None  # what addmm adds, if it is no bias
    activation: str | None
    scale: float  # alpha
    residual_scale: float  # beta
    values: str  # one of DISTRIBUTIONS, or "integers"

    @property
    def k(self) -> int:
        return self.a.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the result."""
        return result_dtype(common_dtype(self.a.meta, self.b.meta), self.out_dtype)

    @property
    def shape(self) -> Shape:
        return product_shape(self.a.shape, self.b.shape)

    @property
    def resolved(self) -> str:
        """How exact it is to be: an accuracy of float32, or else the type."""
        if torch.float32 in (self.a.dtype, self.b.dtype):
            return self.accuracy or "fp32"
        return _name(self.a.dtype)

    @property
    def types(self) -> str:
        a, b = _name(self.a.dtype), _name(self.b.dtype)
        return a if a == b else f"{a} by {b}"

    def __str__(self) -> str:
        parts = [self.call, f"{self.a.shape} by {self.b.shape}", self.types, self.resolved, self.values]
        return ", ".join(parts + [name for name in ("bias", "residual", "out") if getattr(self, name) is not None])


def drawn(seed: int, index: int) -> Case:
    """The product with this index: the same in every run, whatever was drawn before."""
    rng, own = random.Random(f"{seed}/{index // RELATED}"), random.Random(f"{seed}: {index}")
    is_aligned = rng.random() < 0.35
    a_dtype, b_dtype, out_dtype = _types(rng)
    is_float, is_whole = a_dtype.is_floating_point, a_dtype == b_dtype
    call: Call = "matmul"
    if is_float:
        call = rng.choices(("matmul", "linear", "addmm", "override"), (50, 24, 18, 8))[0]
    if call == "override":
        call, out_dtype = ("addmm", out_dtype) if a_dtype == torch.float64 or not is_whole else (call, None)
    runs_on_cuda_cores = not is_float or a_dtype == torch.float64
    max_flops = _MAX_FLOPS_OF_CUDA_CORES if runs_on_cuda_cores else _MAX_FLOPS
    a_shape, b_shape = _shapes(rng, own, call, max_flops, is_aligned)
    shape = product_shape(a_shape, b_shape)
    dtype = torch.float32 if is_mixed(a_dtype, b_dtype) else out_dtype or a_dtype

    has_out = call != "linear" and rng.random() < 0.4
    bias = residual = activation = None
    scale = residual_scale = 1.0
    if call == "linear":
        bias = _vector(rng, b_shape[-1], dtype) if rng.random() < 0.6 else None
        residual = _addend(rng, shape, dtype, is_aligned) if rng.random() < 0.4 else None
        activation = rng.choice((None, *ACTIVATIONS))
    elif call == "addmm" or (call == "override" and rng.random() < 0.7):
        scale, residual_scale = (own.choice(_FACTORS) if rng.random() < 0.6 else 1.0 for _ in range(2))
        residual_scale = 0.0 if rng.random() < 0.1 else residual_scale
        is_row = rng.random() < 0.3 and b_shape[-1] > 1
        if is_row and residual_scale == 1:
            bias = _vector(rng, b_shape[-1], dtype)
        else:
            residual = _addend(rng, shape, dtype, is_aligned)

    accuracy: Accuracy | None = None
    if not is_whole:
        accuracy = rng.choice(("fp32", "fp32", "tf32"))
    elif a_dtype == torch.float32:
        accuracy = rng.choice((None, *ACCURACIES, "fp32", "fp32"))
    return Case(
        seed=seed,
        index=index,
        call=call,
        a=_layout(rng, a_shape, a_dtype, is_aligned, may_expand=True),
        b=_layout(rng, b_shape, b_dtype, is_aligned, may_expand=True),
        accuracy=accuracy,
        out_dtype=out_dtype,
        out=_layout(rng, shape, dtype, is_aligned, may_expand=False) if has_out else None,
        packed=_packed(rng, call) if is_float else (False, False),
        bias=bias,
        residual=residual,
        activation=activation,
        scale=scale,
        residual_scale=residual_scale,
        values=_values(own, a_dtype, b_dtype),
    )


def _types(rng: random.Random) -> tuple[torch.dtype, torch.dtype, torch.dtype | None]:
    """Those of a and b, and the one that the result is asked to have."""
    kind = rng.random()
    if kind < 0.08:
        narrow = rng.choice(SIXTEEN_BITS)
        a, b = rng.choice(((torch.float32, narrow), (narrow, torch.float32)))
        return a, b, None
    dtype = rng.choice(INTEGERS) if kind < 0.17 else rng.choices(list(_FLOATS), list(_FLOATS.values()))[0]
    return dtype, dtype, OUT_DTYPES[dtype][-1] if rng.random() < 0.25 else None


def _values(rng: random.Random, *dtypes: torch.dtype) -> str:
    if not dtypes[0].is_floating_point:
        return "integers"
    in_16_bits = any(dtype in SIXTEEN_BITS for dtype in dtypes)
    return rng.choice(("normal",) * 6 + (_IN_16_BITS if in_16_bits else tuple(DISTRIBUTIONS)))


def _packed(rng: random.Random, call: Call) -> tuple[bool, bool]:
    if call == "linear":
        return False, rng.random() < 0.2
    return (rng.random() < 0.1, rng.random() < 0.15) if call == "matmul" else (False, False)


# Shapes.


def _shapes(
    rng: random.Random, own: random.Random, call: Call, max_flops: int, is_aligned: bool
) -> tuple[Shape, Shape]:
    """Those of a and b; of the calls that are torch's, such that they are matrices or batches of one size."""
    m, k, n = (_near(_size(rng, *limits, is_aligned), own) for limits in _limits(rng))
    if rng.random() < 0.02:
        k = 0
    if call == "override":
        a_batch = b_batch = (rng.choice((1, 2, 3, 7, 16)),) * (rng.random() < 0.4)
        k = max(k, 1)
    else:
        a_batch, b_batch = _batches(rng)
        b_batch = () if call == "linear" else b_batch
    m, k, n = _small_enough([m, k, n], math.prod(a_batch), math.prod(b_batch), max_flops)
    a, b = (*a_batch, m, k), (*b_batch, k, n)
    if call != "override" and not a_batch and rng.random() < 0.04:
        a = (k,)
    if call == "matmul" and not b_batch and rng.random() < 0.04:
        b = (k,)
    return a, b


def _limits(rng: random.Random) -> list[tuple[int, int]]:
    """Between which sizes m, k and n are."""
    kind = rng.random()
    if kind < 0.45:
        return [(1, 1500), (1, 4000), (1, 1500)]
    if kind < 0.72:
        return [(64, 1500), (64, 4000), (64, 1500)]
    if kind < 0.80:
        return [(1, 300), (4000, 60_000), (1, 300)]
    few, many, long = ((1, 160), (500, 8000), (500, 8000)) if kind < 0.92 else ((48, 160), (6000, 20_000), (700, 3000))
    return [few, long, many] if rng.random() < 0.5 else [many, long, few]


def _size(rng: random.Random, least: int, most: int, is_aligned: bool) -> int:
    """One with as many between 10 and 20 as between 100 and 200; often a round number, often an odd one."""
    if least == 1 and rng.random() < 0.06:
        return 1
    size = round(math.exp(rng.uniform(math.log(least), math.log(most))))
    kind = rng.random()
    if kind < 0.2:
        return max(size // 64, 1) * 64
    if kind < 0.4 or is_aligned:
        return max(size // 8, 1) * 8
    return size | 1 if kind < 0.65 else size


def _near(size: int, own: random.Random) -> int:
    """A size that is as round, and as odd."""
    step = next(step for step in (64, 8, 2) if size % step == 0 or step == 2)
    return size if size < 4 else max(size + step * own.randint(-2, 2), step + size % 2)


def _batches(rng: random.Random) -> tuple[Shape, Shape]:
    """Batch dimensions of a and b that broadcast: none as a rule, and up to four."""
    rank = rng.choices(range(5), (66, 16, 9, 5, 4))[0]
    whole = [rng.choice((1, 2, 3, 5, 8, 17)) if rank < 3 else rng.choice((1, 2, 3)) for _ in range(rank)]
    if rank and rng.random() < 0.02:
        whole[rng.randrange(rank)] = 0

    def part() -> Shape:
        ones = [size if rng.random() < 0.7 else 1 for size in whole]
        return tuple(ones[rng.randint(0, rank) if rng.random() < 0.3 else 0 :])

    return part(), part()


def _small_enough(sizes: list[int], a_batch: int, b_batch: int, max_flops: int) -> list[int]:
    """The largest of m, k and n is halved until operands, output and work are within their limits."""
    while True:
        m, k, n = sizes
        batch = max(a_batch, 1) * max(b_batch, 1)
        is_small = m * n * batch <= _MAX_OUTPUT and 2 * m * n * k * batch <= max_flops
        if is_small and max(m * k * a_batch, k * n * b_batch) <= _MAX_OPERAND:
            return sizes
        largest = max(range(3), key=sizes.__getitem__) if is_small or 2 * m * n * k * batch > max_flops else 2 * (n > m)
        sizes[largest] //= 2


# Layouts.


def _layout(
    rng: random.Random, shape: Sequence[int], dtype: torch.dtype, is_aligned: bool, *, may_expand: bool
) -> Layout:
    """By rows or by columns, in a matrix that may be wider; at times with gaps within rows, batches between them, or
    an offset that is no multiple of 16 bytes."""
    rank = len(shape)
    order = list(reversed(range(rank)))  # the innermost dimension first
    if rank > 1 and rng.random() < 0.4:
        order[0], order[1] = order[1], order[0]
    if rank > 2 and rng.random() < 0.15:
        rng.shuffle(order)
    strides = [0] * rank
    step = rng.choice((2, 3)) if rng.random() < 0.03 and not is_aligned else 1
    for place, dimension in enumerate(order):
        strides[dimension] = step
        step *= max(shape[dimension], 1)
        if place == 0 and rng.random() < 0.3:
            step += rng.choice((8, 64) if is_aligned else (1, 3, 4, 8, 64))
    if may_expand and rank > 2 and rng.random() < 0.15:
        strides[rng.randrange(rank - 2)] = 0
    if may_expand and rank and rng.random() < 0.01:
        strides[rng.randrange(rank)] = 0
    offset = rng.choice((1, 2, 4, 5, 8)) if rng.random() < 0.2 and not is_aligned else 0
    return Layout(tuple(shape), tuple(strides), dtype, offset)


def _vector(rng: random.Random, size: int, dtype: torch.dtype) -> Layout:
    return Layout((size,), (rng.choice((1, 1, 1, 2)),), dtype, rng.choice((0, 0, 1, 8)))


def _addend(rng: random.Random, shape: Shape, dtype: torch.dtype, is_aligned: bool) -> Layout:
    """One that broadcasts to the shape, as a rule without."""
    if rng.random() < 0.3:
        ones = [size if rng.random() < 0.6 else 1 for size in shape]
        shape = tuple(ones[rng.randint(0, len(ones)) :])
    return _layout(rng, shape, dtype, is_aligned, may_expand=False)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
