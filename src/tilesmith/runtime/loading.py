"""Kernels that are loaded on a GPU: each is compiled and loaded once, several at the same time."""

import threading
from collections.abc import Sequence

import torch

from tilesmith.core.errors import ColdCaptureError
from tilesmith.core.plan import Kernel
from tilesmith.core.threads import at_once
from tilesmith.runtime import cubins, driver

_functions: dict[tuple[Kernel, int], driver.Function] = {}
_being_made: dict[tuple[Kernel, str], threading.Lock] = {}  # one for each kernel, which is compiled by one thread
_lock = threading.Lock()


def loaded(kernels: Sequence[Kernel], arch: str, device_index: int) -> tuple[driver.Function, ...]:
    """The functions of kernels on the GPU with torch's index `device_index`."""
    functions = [_functions.get((kernel, device_index)) for kernel in kernels]
    known = tuple([function for function in functions if function is not None])
    if len(known) == len(kernels):
        return known
    missing = [kernel for kernel in dict.fromkeys(kernels) if (kernel, device_index) not in _functions]
    _refuse_while_capturing(missing[0])
    torch.cuda.init()
    at_once(lambda kernel: _load(kernel, arch, device_index), missing)
    return tuple(_functions[kernel, device_index] for kernel in kernels)


def _load(kernel: Kernel, arch: str, device_index: int) -> None:
    with _lock:
        own_turn = _being_made.setdefault((kernel, arch), threading.Lock())
    with own_turn:
        if (kernel, device_index) not in _functions:
            cubin = cubins.cubin(kernel, arch)
            _functions[kernel, device_index] = driver.load(cubin, kernel.entry, kernel.shared_bytes, device_index)


def _refuse_while_capturing(kernel: Kernel) -> None:
    if torch.cuda.is_current_stream_capturing():
        raise ColdCaptureError(
            f"the kernel {kernel.entry} for this product is not loaded yet, and a CUDA graph is being "
            "captured: loading would break the capture. Run the product once before the capture, or "
            "call tilesmith.warmup([(a, b)]) with operands of the same shapes and strides."
        )
