"""Runs a plan on CPU tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tilesmith.core.epilogue import Epilogue
from tilesmith.core.packed import PackedPair
from tilesmith.core.params import Buffer
from tilesmith.core.plan import Plan
from tilesmith.core.problem import contiguous_strides
from tilesmith.emulator import launch
from tilesmith.runtime.executor import eight_bytes

_NANS = 0xFFFFFFFF  # in memory that nobody has written: NaNs of every type
_WORKSPACE_ALIGNMENT = 512  # what torch's allocator gives on a GPU


def run(
    plan: Plan,
    a: Tensor,
    b: Tensor,
    *,
    out: Tensor | None = None,
    packed: PackedPair = (None, None),
    epilogue: Epilogue | None = None,
    seed: int | None = None,
    replaced: Mapping[str, str] | None = None,
    stale_word: int = _NANS,
    bank_conflicts: dict[str, int] | None = None,
) -> Tensor:
    """Computes a plan's product of CPU tensors like those that it was made for.

    Args:
        seed: an order in which threads run, and asynchronous work arrives; None is the fastest one.
        replaced: CUDA files with another content than the package's.
        stale_word: what the workspace holds before, in each of its 32-bit words.
        bank_conflicts: gets those of each kernel, by its name, of the matrices that its warps load and store together.
    """
    problem = plan.problem
    if out is None:
        out = _poisoned(problem.out_shape, problem.out.dtype)
    if problem.is_empty:
        return out
    workspace = torch.full(((plan.workspace_bytes + _WORKSPACE_ALIGNMENT) // 4 + 1,), stale_word, dtype=torch.uint32)
    buffers: dict[Buffer, launch.Memory] = {"a": _memory(a), "b": _memory(b), "out": _memory(out)}
    if plan.workspace_bytes:
        begin = workspace.data_ptr() + -workspace.data_ptr() % _WORKSPACE_ALIGNMENT
        buffers["workspace"] = launch.Memory(begin, begin, plan.workspace_bytes)
    more: dict[Buffer, Tensor | None] = {"a_packed": packed[0], "b_packed": packed[1]}
    if epilogue is not None:
        buffers["factors"] = launch.Memory(eight_bytes(epilogue.scale, epilogue.residual_scale), 0, 0)
        more |= {"bias": epilogue.bias, "residual": epilogue.residual}
    buffers |= {name: _memory(tensor) for name, tensor in more.items() if tensor is not None}
    for each in plan.launches:
        if replaced:
            function = launch.Function(each.kernel, plan.device.arch, replaced)
        else:
            function = launch.function(each.kernel, plan.device.arch)
        found = function(each, buffers, seed)
        if bank_conflicts is not None:
            bank_conflicts[each.kernel.entry] = bank_conflicts.get(each.kernel.entry, 0) + found
    return out


def _memory(tensor: Tensor) -> launch.Memory:
    """The memory from a tensor's first byte to its last."""
    address = tensor.data_ptr()
    if tensor.numel() == 0:
        return launch.Memory(address, address, 0)
    steps = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return launch.Memory(address, address, (sum(steps) + 1) * tensor.itemsize)


def _poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    fresh = torch.empty_strided(shape, contiguous_strides(shape), dtype=dtype)
    (fresh if fresh.dim() else fresh.view(1)).view(torch.uint8).fill_(_NANS & 0xFF)
    return fresh
