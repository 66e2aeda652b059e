"""A matrix product as a frozen value: sizes, types and strides, and nothing of how to do it.

`Problem.of` is the one place where operands are checked. Its errors are torch's: the same
exception types, and messages that name shapes, types and devices.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch.autograd import forward_ad

from tilesmith.accuracy import Accuracy
from tilesmith.epilogue import ACTIVATIONS, Epilogue

# The element types that can be multiplied, each with the types its result may have.
OUT_DTYPES: Final[dict[torch.dtype, tuple[torch.dtype, ...]]] = {
    torch.float64: (torch.float64,),
    torch.float32: (torch.float32,),
    torch.float16: (torch.float16, torch.float32),
    torch.bfloat16: (torch.bfloat16, torch.float32),
    torch.int8: (torch.int8, torch.int32),
    torch.uint8: (torch.uint8, torch.int32),
    torch.int16: (torch.int16, torch.int32),
    torch.int32: (torch.int32,),
    torch.int64: (torch.int64,),
}

_SIXTEEN_BITS: Final = (torch.float16, torch.bfloat16)  # what float32 can be multiplied with

ALIGNMENT: Final = 16  # the widest access, in bytes: no kernel asks for more


@dataclass(frozen=True, slots=True)
class Matrix:
    """A batch of matrices in memory. Strides count elements; the stride of a size of one is 0."""

    dtype: torch.dtype
    rows: int
    columns: int
    row_stride: int
    column_stride: int
    batch_strides: tuple[int, ...]
    alignment: int  # the address is a multiple of this, ALIGNMENT at most
    packed: bool = False  # tilesmith.pack has made planes of it

    @property
    def transposed(self) -> "Matrix":
        """The same memory, read with rows and columns exchanged."""
        return replace(
            self,
            rows=self.columns,
            columns=self.rows,
            row_stride=self.column_stride,
            column_stride=self.row_stride,
        )


@dataclass(frozen=True, slots=True)
class Finish:
    """What an `Epilogue` asks of a kernel. The factors themselves come with each call."""

    activation: str | None
    bias: Matrix | None  # one row, repeated; of a transposed product one column
    residual: Matrix | None
    is_scaled: bool

    @property
    def transposed(self) -> "Finish":
        bias, residual = self.bias, self.residual
        return replace(
            self,
            bias=None if bias is None else bias.transposed,
            residual=None if residual is None else residual.transposed,
        )


@dataclass(frozen=True, slots=True)
class Problem:
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
    finish: Finish | None = None  # of the sums, before they are stored

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
        batch = _broadcast(a2.shape[:-2], b2.shape[:-2])
        m, n = a2.shape[-2], b2.shape[-1]
        if out is None:
            out_strides, out_alignment = contiguous_strides((*batch, m, n)), ALIGNMENT
        else:
            check_out(a, b, out, out_dtype)
            if tuple(out.shape) != out_shape:
                raise RuntimeError(f"out has shape {list(out.shape)}, but the product has shape {list(out_shape)}")
            out_strides, out_alignment = _strides_of_out(out, a, b), _alignment(out)

        return _fold_batch(
            cls(
                m=m,
                n=n,
                k=a.shape[-1],
                batch=batch,
                a=_matrix(a2, batch, packed[0]),
                b=_matrix(b2, batch, packed[1]),
                out=Matrix(
                    dtype=dtype,
                    rows=m,
                    columns=n,
                    row_stride=out_strides[-2] if m > 1 else 0,
                    column_stride=out_strides[-1] if n > 1 else 0,
                    batch_strides=tuple(out_strides[:-2]),
                    alignment=out_alignment,
                ),
                out_shape=out_shape,
                accuracy=accuracy,
                skips_zeros=skips_zeros,
                finish=None if epilogue is None else _finish(epilogue, a, b, batch, dtype),
            )
        )

    @property
    def transposed(self) -> "Problem":
        """The same product read as its transpose: `out^T = b^T a^T`."""
        return replace(
            self,
            m=self.n,
            n=self.m,
            a=self.b.transposed,
            b=self.a.transposed,
            out=self.out.transposed,
            finish=None if self.finish is None else self.finish.transposed,
        )

    @property
    def stored_by_rows(self) -> "Problem":
        """The same product, read such that rows of the output are contiguous where its columns would be."""
        by_columns = self.out.row_stride == 1 and self.out.column_stride != 1
        return self.transposed if by_columns else self

    @property
    def batches(self) -> int:
        return math.prod(self.batch)

    @property
    def is_empty(self) -> bool:
        """Nothing is to be written."""
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


def check_dense(a: object, b: object) -> None:
    """Raises for operands that are not dense tensors."""
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, torch.Tensor):
            raise TypeError(f"matmul(): argument {name!r} must be Tensor, not {type(operand).__name__}")
        if operand.layout != torch.strided or operand.is_quantized:
            kind = "a quantized type" if operand.layout == torch.strided else f"layout {operand.layout}"
            raise NotImplementedError(
                f"tilesmith.matmul takes dense tensors, but {name} has {kind} "
                f"(shape {list(operand.shape)}, {operand.dtype} on {operand.device})"
            )


def is_mixed(a: torch.dtype, b: torch.dtype) -> bool:
    """One is float32 and the other has 16 bits."""
    return (a == torch.float32 and b in _SIXTEEN_BITS) or (b == torch.float32 and a in _SIXTEEN_BITS)


def common_dtype(a: torch.Tensor, b: torch.Tensor) -> torch.dtype:
    """The type of both operands; of mixed ones float32."""
    return torch.float32 if is_mixed(a.dtype, b.dtype) else a.dtype


def check_operands(a: torch.Tensor, b: torch.Tensor, *, may_mix: bool = False) -> None:
    """Raises what torch raises for operands that have no product, whatever their shapes."""
    check_dense(a, b)
    shapes = f"shapes {list(a.shape)} and {list(b.shape)}"
    if a.device != b.device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but a is on {a.device} and b is on {b.device} ({shapes})"
        )
    if a.dtype != b.dtype and not (may_mix and is_mixed(a.dtype, b.dtype)):
        raise RuntimeError(
            f"expected a and b to have the same dtype, but got: {a.dtype} != {b.dtype} ({shapes} on {a.device})"
        )
    if a.dtype not in OUT_DTYPES:
        raise NotImplementedError(
            f"tilesmith.matmul is not implemented for {a.dtype} ({shapes} on {a.device}); "
            f"it takes {', '.join(str(d).removeprefix('torch.') for d in OUT_DTYPES)}"
        )


def check_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, out_dtype: torch.dtype | None) -> None:
    """Raises what torch raises for an `out` that cannot take the product of a and b.

    A wrong shape is not among them: torch resizes `out`, and so does `tilesmith.matmul`.
    """
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"matmul(): argument 'out' must be Tensor, not {type(out).__name__}")
    if out.layout != torch.strided:
        raise NotImplementedError(f"tilesmith.matmul writes dense tensors, but out has layout {out.layout}")
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(x).tangent is not None for x in (a, b, out)):
        raise NotImplementedError("matmul(): functions with out=... arguments don't support forward mode AD.")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (a, b, out)):
        raise RuntimeError(
            "matmul(): functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad."
        )
    if out.device != a.device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but out is on {out.device} and a and b are on {a.device}"
        )
    expected = result_dtype(common_dtype(a, b), out_dtype)
    if out.dtype != expected:
        raise RuntimeError(f"Expected out tensor to have dtype {expected}, but got {out.dtype} instead")
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            f"location (out has shape {list(out.shape)} and strides {list(out.stride())}). "
            "Please clone() the tensor before performing the operation."
        )


def product_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape of `torch.matmul`'s result, or its error.

    >>> product_shape((7, 1, 3, 4), (5, 4, 2))
    (7, 5, 3, 2)
    """
    if len(a) == 0 or len(b) == 0:
        raise RuntimeError(f"both arguments to matmul need to be at least 1D, but they are {len(a)}D and {len(b)}D")
    a_rows, b_columns = tuple(a[-2:-1]), (b[-1],) if len(b) > 1 else ()
    b_rows = b[-2] if len(b) > 1 else b[0]
    if a[-1] != b_rows:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({'x'.join(map(str, a))} and {'x'.join(map(str, b))}): "
            f"the inner dimensions {a[-1]} and {b_rows} differ"
        )
    batch = _broadcast(a[:-2], b[:-2])
    return (*batch, *a_rows, *b_columns)


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Batch dimensions that broadcast. torch.broadcast_shapes would, but first imports SymPy for a second."""
    rank = max(len(a), len(b))
    sizes: list[int] = []
    for x, y in zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True):
        if x != y and x != 1 and y != 1:
            raise RuntimeError(
                f"The size of tensor a ({x}) must match the size of tensor b ({y}) at non-singleton dimension "
                f"{len(sizes)}: the batch dimensions {list(a)} and {list(b)} cannot be broadcast together"
            )
        sizes.append(y if x == 1 else x)
    return tuple(sizes)


def result_dtype(dtype: torch.dtype, out_dtype: torch.dtype | None) -> torch.dtype:
    """The type of the result: the operands' own, or a wider one where that means something."""
    if out_dtype is None:
        return dtype
    if out_dtype not in OUT_DTYPES[dtype]:
        raise RuntimeError(
            f"out_dtype {out_dtype} is not possible for operands of {dtype}; "
            f"possible are {', '.join(map(str, OUT_DTYPES[dtype]))}"
        )
    return out_dtype


def _strides_of_out(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    """The strides of a caller's `out`, with the dimensions that 1-D operands lack put back."""
    strides = list(out.stride())
    if b.dim() == 1:
        strides.append(0)
    if a.dim() == 1:
        strides.insert(len(strides) - 1, 0)
    return tuple(strides)


def _matrix(tensor: torch.Tensor, batch: Sequence[int], packed: bool) -> Matrix:
    expanded = tensor.expand(*batch, *tensor.shape[-2:])
    rows, columns = tensor.shape[-2:]
    *batch_strides, row_stride, column_stride = expanded.stride()
    return Matrix(
        dtype=tensor.dtype,
        rows=rows,
        columns=columns,
        row_stride=row_stride if rows > 1 else 0,
        column_stride=column_stride if columns > 1 else 0,
        batch_strides=tuple(batch_strides),
        alignment=_alignment(tensor),
        packed=packed,
    )


def _finish(
    epilogue: Epilogue, a: torch.Tensor, b: torch.Tensor, batch: tuple[int, ...], dtype: torch.dtype
) -> Finish | None:
    """Of a product of this type. None if it asks for nothing."""
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
    return Finish(
        activation=activation,
        bias=None if bias is None else _matrix(bias.expand(m, n), batch, packed=False),
        residual=None if residual is None else _matrix(residual, batch, packed=False),
        is_scaled=epilogue.is_scaled,
    )


def check_epilogue(epilogue: Epilogue, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises for an epilogue that a product of a and b, of this type, cannot have."""
    shape = product_shape(a.shape, b.shape)
    if not dtype.is_floating_point:
        raise NotImplementedError(f"a product of {dtype} is stored as it is: only floating-point ones have an epilogue")
    if epilogue.activation not in (None, *ACTIVATIONS):
        raise ValueError(f"activation is None, {', '.join(map(repr, ACTIVATIONS))}, not {epilogue.activation!r}")
    for name, added in (("bias", epilogue.bias), ("residual", epilogue.residual)):
        if added is not None and added.device != a.device:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {name} is on {added.device} and the operands "
                f"are on {a.device}"
            )
        if added is not None and added.dtype not in (dtype, common_dtype(a, b)):
            raise RuntimeError(f"{name} is {added.dtype}, but the operands or the result have {dtype}")
    bias, residual = epilogue.bias, epilogue.residual
    columns = b.shape[-1] if b.dim() > 1 else 1
    if bias is not None and tuple(bias.shape) != (columns,):
        raise RuntimeError(f"bias has shape {list(bias.shape)}, but the product has {columns} columns")
    if residual is not None and (
        residual.dim() > len(shape)
        or any(x not in (1, y) for x, y in zip(residual.shape[::-1], shape[::-1], strict=False))
    ):
        raise RuntimeError(f"residual of shape {list(residual.shape)} does not broadcast to the result's {list(shape)}")


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
    return tuple(reversed(strides))


def _fold_batch(problem: Problem) -> Problem:
    """Fewer batch dimensions for the same memory: ones that a single stride can walk become one,
    and a batch that shares b becomes rows of a, which is how `linear` calls arrive. Not of a packed a: its planes
    were made without knowing b."""
    finish = problem.finish
    residual = None if finish is None else finish.residual
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
            a = replace(a, rows=m, row_stride=a_stride)
            out = replace(out, rows=m, row_stride=out_stride)
            residual = residual and replace(residual, rows=m, row_stride=residual_stride)
        elif (
            b_stride == 0
            and a_stride == m * a.row_stride
            and out_stride == m * out.row_stride
            and (residual is None or residual_stride == m * residual.row_stride)
        ):
            dims.pop()
            m *= size
            a, out = replace(a, rows=m), replace(out, rows=m)
            residual = residual and replace(residual, rows=m)
    if finish is not None:
        bias = finish.bias and replace(finish.bias, rows=m, batch_strides=())
        residual = residual and replace(residual, batch_strides=tuple(d[4] for d in dims))
        finish = replace(finish, bias=bias, residual=residual)
    return replace(
        problem,
        m=m,
        batch=tuple(d[0] for d in dims),
        a=replace(a, batch_strides=tuple(d[1] for d in dims)),
        b=replace(b, batch_strides=tuple(d[2] for d in dims)),
        out=replace(out, batch_strides=tuple(d[3] for d in dims)),
        finish=finish,
    )
