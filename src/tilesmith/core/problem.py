"""A matrix product as a frozen value: sizes, types and strides, and nothing of how to do it."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from tilesmith.core.accuracy import Accuracy
from tilesmith.core.checks import (
    OUT_DTYPES,
    broadcast,
    check_epilogue,
    check_operands,
    check_out,
    common_dtype,
    product_shape,
    result_dtype,
)
from tilesmith.core.epilogue import Epilogue

__all__ = ["ALIGNMENT", "OUT_DTYPES", "EpilogueSpec", "Matrix", "Problem", "contiguous_strides"]

ALIGNMENT: Final = 16  # the max_line access, in bytes: no kernel asks for more


class Matrix(NamedTuple):
    """A batch of matrices in memory. Strides count elements; the stride of a size of one is 0."""

    dtype: torch.dtype
    rows: int
    columns: int
    row_stride: int
    column_stride: int
    batch_strides: tuple[int, ...]
    alignment: int  # the address is a multiple of this, ALIGNMENT at most
    packed: bool = False  # tilesmith.pack has made terms of it

    @property
    def transposed(self) -> "Matrix":
        """This memory read with rows and columns exchanged."""
        dtype, rows, columns, row_stride, column_stride, batch_strides, alignment, packed = self
        return Matrix(dtype, columns, rows, column_stride, row_stride, batch_strides, alignment, packed)


class EpilogueSpec(NamedTuple):
    """What an `Epilogue` asks of a kernel: its sizes, types and strides. The factors come with each call."""

    activation: str | None
    bias: Matrix | None  # one row, repeated; of a transposed product one column
    residual: Matrix | None
    is_scaled: bool

    @property
    def transposed(self) -> "EpilogueSpec":
        bias, residual = self.bias, self.residual
        return self._replace(
            bias=None if bias is None else bias.transposed,
            residual=None if residual is None else residual.transposed,
        )


class Problem(NamedTuple):
    """`out[m, n] = a[m, k] @ b[k, n]` for every index of the batch."""

    m: int
    n: int
    k: int
    batch: tuple[int, ...]  # sizes, after merging the dimensions that one stride can walk
    a: Matrix
    b: Matrix
    out: Matrix
    out_shape: tuple[int, ...]  # as the caller sees it
    accuracy: Accuracy
    skips_zeros: bool = False  # large parts of the operands may be zero, as in triangles: it is worth looking for them
    epilogue: EpilogueSpec | None = None  # of the sums, before they are stored

    @classmethod
    def of(
        cls,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        accuracy: Accuracy = "fp32",
        out_dtype: torch.dtype | None = None,
        out: torch.Tensor | None = None,
        packed: tuple[bool, bool] = (False, False),
        may_mix: bool = False,
        skips_zeros: bool = False,
        epilogue: Epilogue | None = None,
    ) -> "Problem":
        """The product of two tensors, which may be on the meta device. `packed`: which of them are. `may_mix`: one may
        be float32 and the other of 16 bits. `skips_zeros`: triangles are to be expected, and need not be.

        >>> p = Problem.of(torch.empty(3, 4, device="meta"), torch.empty(2, 4, 5, device="meta"))
        >>> p.m, p.n, p.k, p.batch, p.out_shape
        (3, 5, 4, (2,), (2, 3, 5))
        """
        check_operands(a, b, may_mix=may_mix)
        out_shape = product_shape(a.shape, b.shape)
        dtype = result_dtype(common_dtype(a, b), out_dtype)

        a2 = a.unsqueeze(0) if a.dim() == 1 else a
        b2 = b.unsqueeze(1) if b.dim() == 1 else b
        batch = broadcast(a2.shape[:-2], b2.shape[:-2])
        m, n = a2.shape[-2], b2.shape[-1]
        if out is None:
            out_strides, out_alignment = contiguous_strides((*batch, m, n)), ALIGNMENT
        else:
            check_out(a, b, out, out_dtype)
            if tuple(out.shape) != out_shape:
                raise RuntimeError(f"out has shape {list(out.shape)}, but the product has shape {list(out_shape)}")
            out_strides, out_alignment = _strides_of_out(out, a, b), _alignment(out)

        problem = cls(
            m=m,
            n=n,
            k=a.shape[-1],
            batch=batch,
            a=_matrix(a2, batch, packed[0]),
            b=_matrix(b2, batch, packed[1]),
            out=Matrix(
                *(dtype, m, n, out_strides[-2] if m > 1 else 0, out_strides[-1] if n > 1 else 0),
                *(out_strides[:-2], out_alignment),
            ),
            out_shape=out_shape,
            accuracy=accuracy,
            skips_zeros=skips_zeros,
            epilogue=None if epilogue is None else _epilogue(epilogue, a, b, batch, dtype),
        )
        return _fold_batch(problem) if batch else problem

    @property
    def transposed(self) -> "Problem":
        """This product read as its transpose: `out^T = b^T a^T`."""
        return Problem(
            *(self.n, self.m, self.k, self.batch, self.b.transposed, self.a.transposed, self.out.transposed),
            *(self.out_shape, self.accuracy, self.skips_zeros),
            epilogue=None if self.epilogue is None else self.epilogue.transposed,
        )

    @property
    def stored_by_rows(self) -> "Problem":
        """This product, read such that rows of the output are contiguous where its columns would be."""
        by_columns = self.out.row_stride == 1 and self.out.column_stride != 1
        return self.transposed if by_columns else self

    @property
    def batches(self) -> int:
        return math.prod(self.batch)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be written."""
        return self.m * self.n * self.batches == 0

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * self.batches

    def __str__(self) -> str:
        batch = "".join(f"{size} x " for size in self.batch)
        a, b, out = (str(each.dtype).removeprefix("torch.") for each in (self.a, self.b, self.out))
        operands = a if a == b else f"{a} by {b}"
        types = operands if operands == out else f"{operands} -> {out}"
        return f"{batch}{self.m} x {self.k} x {self.n} {types}"


def _strides_of_out(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    """The strides of a caller's `out`, with the dimensions that 1-D operands lack put back."""
    strides = list(out.stride())
    if b.dim() == 1:
        strides.append(0)
    if a.dim() == 1:
        strides.insert(len(strides) - 1, 0)
    return tuple(strides)


def _matrix(tensor: torch.Tensor, batch: Sequence[int], packed: bool) -> Matrix:
    shape, strides = tensor.shape, tensor.stride()
    rows, columns = shape[-2:]
    row_stride, column_stride = strides[-2:]
    batch_strides: tuple[int, ...] = ()
    if batch:
        missing = len(batch) - len(shape) + 2
        own = zip(shape[:-2], batch[missing:], strides[:-2], strict=True)
        batch_strides = (*(0,) * missing, *[stride if size == whole else 0 for size, whole, stride in own])
    return Matrix(
        *(tensor.dtype, rows, columns, row_stride if rows > 1 else 0, column_stride if columns > 1 else 0),
        *(batch_strides, _alignment(tensor), packed),
    )


def _epilogue(
    epilogue: Epilogue, a: torch.Tensor, b: torch.Tensor, batch: tuple[int, ...], dtype: torch.dtype
) -> EpilogueSpec | None:
    """The epilogue of a product of this type. None if it asks for nothing."""
    bias, activation, residual, *_ = epilogue
    if bias is None and activation is None and residual is None and not epilogue.is_scaled:
        return None
    check_epilogue(epilogue, a, b, dtype)
    m, n = a.shape[-2] if a.dim() > 1 else 1, b.shape[-1] if b.dim() > 1 else 1
    if residual is not None:
        residual = residual.expand(product_shape(a.shape, b.shape))
        if b.dim() == 1:
            residual = residual.unsqueeze(-1)
        if a.dim() == 1:
            residual = residual.unsqueeze(-2)
    return EpilogueSpec(
        activation=activation,
        bias=None if bias is None else _matrix(bias.expand(m, n), batch, packed=False),
        residual=None if residual is None else _matrix(residual, batch, packed=False),
        is_scaled=epilogue.is_scaled,
    )


def _alignment(tensor: torch.Tensor) -> int:
    # A meta tensor has no address: it stands for one in memory that torch's allocator aligned.
    address = tensor.storage_offset() * tensor.itemsize if tensor.is_meta else tensor.data_ptr()
    return math.gcd(address, ALIGNMENT)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a new tensor of this shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(strides[::-1])


def _fold_batch(problem: Problem) -> Problem:
    """Fewer batch dimensions for the same memory: ones that a single stride can walk become one,
    and a batch that shares b becomes rows of a, which is how `linear` calls arrive. Not of a packed a: its terms
    were made without knowing b."""
    epilogue = problem.epilogue
    residual = None if epilogue is None else epilogue.residual
    residual_strides = (0,) * len(problem.batch) if residual is None else residual.batch_strides
    dims: list[tuple[int, ...]] = []  # size and the strides of a, b, out, residual
    for size, *strides in zip(
        *(problem.batch, problem.a.batch_strides, problem.b.batch_strides, problem.out.batch_strides, residual_strides),
        strict=True,
    ):
        if size == 1:
            continue
        if dims and dims[-1][1:] == tuple(size * stride for stride in strides):
            dims[-1] = (dims[-1][0] * size, *strides)
        else:
            dims.append((size, *strides))

    m, a, b, out = problem.m, problem.a, problem.b, problem.out
    if dims and not a.packed:
        size, a_stride, b_stride, out_stride, residual_stride = dims[-1]
        if b_stride == 0 and m == 1:
            dims.pop()
            m = size
            a = a._replace(rows=m, row_stride=a_stride)
            out = out._replace(rows=m, row_stride=out_stride)
            residual = residual and residual._replace(rows=m, row_stride=residual_stride)
        elif (
            b_stride == 0
            and a_stride == m * a.row_stride
            and out_stride == m * out.row_stride
            and (residual is None or residual_stride == m * residual.row_stride)
        ):
            dims.pop()
            m *= size
            a, out = a._replace(rows=m), out._replace(rows=m)
            residual = residual and residual._replace(rows=m)
    if epilogue is not None:
        bias = epilogue.bias and epilogue.bias._replace(rows=m, batch_strides=())
        residual = residual and residual._replace(batch_strides=tuple(d[4] for d in dims))
        epilogue = epilogue._replace(bias=bias, residual=residual)
    return problem._replace(
        m=m,
        batch=tuple(d[0] for d in dims),
        a=a._replace(batch_strides=tuple(d[1] for d in dims)),
        b=b._replace(batch_strides=tuple(d[2] for d in dims)),
        out=out._replace(batch_strides=tuple(d[3] for d in dims)),
        epilogue=epilogue,
    )
