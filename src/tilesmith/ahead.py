"""What users call before they multiply: how a product would be done, and to have its kernels ready."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from tilesmith.core import device as devices
from tilesmith.core import rates
from tilesmith.core.accuracy import numerics
from tilesmith.core.checks import (
    check_dense,
    check_linear_shapes,
    check_linear_types,
    common_dtype,
    product_shape,
    result_dtype,
)
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.errors import UnavailableError
from tilesmith.core.packed import Packed, unpacked
from tilesmith.core.plan import Plan
from tilesmith.explain import Explanation
from tilesmith.override.collecting import collecting
from tilesmith.planner import rejections
from tilesmith.runtime import executor
from tilesmith.torch_ops import distributed
from tilesmith.torch_ops import linear as op_linear

Operand = torch.Tensor | Packed | tuple[int, ...]  # a shape stands for a tensor


def explain(
    a: torch.Tensor | Packed,
    b: torch.Tensor | Packed,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    accuracy: str | None = None,
    out_dtype: torch.dtype | None = None,
    gpu: str | devices.Device | None = None,
) -> Explanation:
    """How `matmul` would multiply these operands on a GPU, and why so: print it. Nothing is computed or compiled.

    Args:
        a, b, accuracy, out_dtype: as for `matmul`; tensors may be on the meta device, or on the CPU.
        bias, activation, residual: what follows the product, as in `linear(a, b.mT, ...)`.
        gpu: a name such as "h200", or an architecture such as "sm_90"; a wrong one is answered with all of them. None
            is the GPU of the operands, or else the current one of this machine, or else an H200.

    >>> a, b = torch.empty(4096, 4096, device="meta"), torch.empty(4096, 4096, device="meta")
    >>> explanation = explain(a, b, gpu="h200")
    >>> [launch.kernel for launch in explanation.launches], explanation.work.bounds.bound
    (['split', 'gemm_fp32', 'split', 'gemm_fp32'], 'compute')
    """
    a, b, packed, accuracy = unpacked(a, b, accuracy)
    check_dense(a, b)
    if distributed.is_distributed(a, b):
        raise NotImplementedError("tilesmith.explain takes the tensors of one process: pass x.to_local()")
    notes = []
    if gpu is not None:
        target = devices.named(gpu) if isinstance(gpu, str) else gpu
    elif a.is_cuda or torch.cuda.is_available():
        target = devices.installed(a.get_device() if a.is_cuda else torch.cuda.current_device())
    else:
        target = devices.named(devices.STAND_IN)
        notes.append(f"torch finds no GPU here: this is for an {target.name}.")
    if (stand_in := rates.stand_in(target)) is not None:
        notes.append(f"No rates were fitted on {target.name}: times are estimated with those of {stand_in}.")
    epilogue = _followed_by(a, b, bias, activation, residual, accuracy, out_dtype)
    resolved = numerics(accuracy, a.dtype)
    plan = executor.planned(a, b, target, resolved, out_dtype, None, packed, epilogue)
    if plan is None:
        notes.append("No kernel takes these operands as they are: the one of 16 bits is converted to float32 first.")
        a, b = (x.to("meta").float() for x in (a, b))
        plan = executor.planned(a, b, target, resolved, out_dtype, None, packed, epilogue)
        assert plan is not None
    if plan.is_tuned:
        notes.append("This plan was measured to be the fastest here: `tilesmith tune` kept it.")
    return Explanation.of(plan, rejections(plan), notes)


def _followed_by(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    residual: torch.Tensor | None,
    accuracy: str | None,
    out_dtype: torch.dtype | None,
) -> Epilogue | None:
    if bias is None and activation is None and residual is None:
        return None
    weight = b.mT if b.dim() > 1 else b
    check_linear_shapes(a, weight, bias, residual, activation)
    check_linear_types(a, weight, bias, residual, accuracy, out_dtype)
    return op_linear.epilogue_of(a, b, bias, residual, activation, out_dtype)


def warmup(
    what: torch.nn.Module | Iterable[tuple[Operand, Operand]],
    *inputs: Any,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cuda",
    accuracy: str | None = None,
    out_dtype: torch.dtype | None = None,
    bias: bool = False,
    activation: str | None = None,
    residual: bool = False,
    backward: bool = False,
) -> None:
    """Compiles and loads the kernels of products before they are needed, in a CUDA graph or a server, all at the same
    time.

    Args:
        what: pairs of tensors, packed ones among them, or of shapes that stand for contiguous tensors of `dtype` on
            `device`. Or a model on a GPU, whose products are those that the override in force would take, or else one
            with `accuracy`. Its forward is run once on the inputs, where torch multiplies.
        inputs: the arguments of the model.
        dtype, device: of the tensors that shapes stand for.
        accuracy, out_dtype: as for `matmul`.
        bias, activation, residual: what follows the product of each pair, as in `linear(a, b.mT, ...)`.
        backward: whether the model's backward pass is run too. It leaves no gradients.

    >>> if torch.cuda.is_available():
    ...     warmup([((4096, 1024), (1024, 512))], dtype=torch.bfloat16)
    ...     warmup(torch.nn.Linear(1024, 512, device="cuda"), torch.ones(64, 1024, device="cuda"), backward=True)
    """
    if not torch.cuda.is_available():
        raise UnavailableError("tilesmith.warmup needs an NVIDIA GPU and a torch built for CUDA; this machine has none")
    if isinstance(what, torch.nn.Module):
        if bias or activation is not None or residual:
            raise TypeError(
                "tilesmith.warmup takes bias, activation and residual with pairs alone: a model has its own"
            )
        with collecting(accuracy) as plans:
            _run(what, inputs, backward)
    elif inputs or backward:
        raise TypeError("tilesmith.warmup takes inputs and backward with a torch.nn.Module alone")
    else:
        follows = _Follows(bias, activation, residual)
        plans = [_planned(*pair, dtype, device, accuracy, out_dtype, follows) for pair in what]
    executor.load(plans)


def _run(model: torch.nn.Module, inputs: tuple[Any, ...], backward: bool) -> None:
    with torch.set_grad_enabled(backward):
        results = [x for x in tree_leaves(model(*inputs)) if isinstance(x, torch.Tensor) and x.requires_grad]
    if backward and results:
        leaves = [x for x in (*model.parameters(), *inputs) if isinstance(x, torch.Tensor) and x.requires_grad]
        torch.autograd.grad(results, leaves, [torch.zeros_like(x) for x in results], allow_unused=True)


def _planned(
    x: Operand,
    y: Operand,
    dtype: torch.dtype,
    device: torch.device | str,
    accuracy: str | None,
    out_dtype: torch.dtype | None,
    follows: "_Follows",
) -> tuple[Plan, int]:
    """How `matmul` would multiply these, and the index of the GPU."""
    x, y = (each if isinstance(each, torch.Tensor | Packed) else _ghost(each, dtype) for each in (x, y))
    a, b, packed, accuracy = unpacked(x, y, accuracy)
    on = a.device if a.is_cuda else torch.device(device)
    index = torch.cuda.current_device() if on.index is None else on.index
    gpu, resolved = devices.installed(index), numerics(accuracy, a.dtype)
    epilogue = follows.epilogue(a, b, accuracy, out_dtype)
    plan = executor.planned(a, b, gpu, resolved, out_dtype, None, packed, epilogue)
    if plan is None:
        plan = executor.planned(a.float(), b.float(), gpu, resolved, out_dtype, None, packed, epilogue)
        assert plan is not None
    return plan, index


class _Follows(NamedTuple):
    """What follows the products of a warm-up."""

    bias: bool
    activation: str | None
    residual: bool

    def epilogue(
        self, a: torch.Tensor, b: torch.Tensor, accuracy: str | None, out_dtype: torch.dtype | None
    ) -> Epilogue | None:
        shape, dtype = product_shape(a.shape, b.shape), result_dtype(common_dtype(a, b), out_dtype)
        bias = torch.empty(shape[-1:], dtype=dtype, device=a.device) if self.bias else None
        residual = torch.empty(shape, dtype=dtype, device=a.device) if self.residual else None
        return _followed_by(a, b, bias, self.activation, residual, accuracy, out_dtype)


def _ghost(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
