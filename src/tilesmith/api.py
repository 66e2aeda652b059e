"""What users call."""

import warnings
from collections.abc import Iterable

import torch

from tilesmith import op, prepared
from tilesmith.accuracy import resolve
from tilesmith.device import installed
from tilesmith.errors import UnavailableError
from tilesmith.planner import choose
from tilesmith.problem import OUT_DTYPES, Problem, check_dense, check_operands, check_out, product_shape


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    accuracy: str | None = None,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The matrix product of two tensors, with the semantics of `torch.matmul`.

    On a GPU it is computed by Tilesmith's own kernels; CPU tensors are multiplied by torch.

    Args:
        a, b: tensors of one type on one device; 1-D, 2-D, or batched with broadcasting, with any strides.
        accuracy: how exact a float32 product must be: as torch's float32 ("fp32"), as torch's TF32 ("tf32"), or one
            chain of float32 multiply-adds ("ieee"), which all three are today. None follows
            `torch.backends.cuda.matmul`.
        out_dtype: a wider type for the result: float32 for 16-bit floats, int32 for 8- and 16-bit integers.
        out: a tensor to write the result into.

    >>> a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]])
    >>> matmul(a, b)
    tensor([[11.]])
    """
    if torch.compiler.is_compiling() or out is not None or not op.is_plain(a, b):
        return _dispatched(a, b, accuracy, out_dtype, out)
    return prepared.multiply(a, b, accuracy, out_dtype)


def warmup(
    operands: Iterable[tuple[torch.Tensor | tuple[int, ...], torch.Tensor | tuple[int, ...]]],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cuda",
    accuracy: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> None:
    """Compiles and loads the kernels of products before they are needed, in a CUDA graph or a server.

    Args:
        operands: pairs of tensors, or of shapes that stand for contiguous tensors of `dtype` on `device`.

    >>> if torch.cuda.is_available():
    ...     warmup([((4096, 1024), (1024, 512))], dtype=torch.bfloat16)
    """
    if not torch.cuda.is_available():
        raise UnavailableError("tilesmith.warmup needs an NVIDIA GPU and a torch built for CUDA; this machine has none")
    for pair in operands:
        a, b = (x if isinstance(x, torch.Tensor) else torch.empty(x, dtype=dtype, device="meta") for x in pair)
        problem = Problem.of(a, b, accuracy=resolve(accuracy), out_dtype=out_dtype)
        on = a.device if a.is_cuda else torch.device(device)
        index = torch.cuda.current_device() if on.index is None else on.index
        prepared.prepare(choose(problem, installed(index)), index)


def _dispatched(
    a: torch.Tensor,
    b: torch.Tensor,
    accuracy: str | None,
    out_dtype: torch.dtype | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """A product that PyTorch's dispatcher takes part in: autograd, autocast, modes, transforms, `out`."""
    check_dense(a, b)
    if accuracy is not None:
        resolve(accuracy)
    if out is None:
        return op.product(a, b, accuracy, out_dtype)
    if a.is_cpu and a.dtype not in OUT_DTYPES:
        return torch.matmul(a, b, out=out)  # torch's CPU product takes more types than our kernels
    check_operands(a, b)
    check_out(a, b, out, out_dtype)
    shape = product_shape(a.shape, b.shape)
    if tuple(out.shape) != shape:
        if out.numel() > 0:
            warnings.warn(
                f"An output with one or more elements was resized since it had shape {list(out.shape)}, "
                f"which does not match the required output shape {list(shape)}.",
                stacklevel=3,
            )
        out.resize_(shape)
    if not torch.compiler.is_compiling() and out.is_neg():
        return out.copy_(op.product(a, b, accuracy, out.dtype))  # copy_ knows how to write with the sign reversed
    op.matmul_out(a, b, out=out, accuracy=accuracy)
    return out
