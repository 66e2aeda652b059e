"""Tensors from one process to another. Their values are in a file; those of a GPU stay where they are, and the file has
handles through which the other process copies them at the speed of the GPU's memory."""

import ctypes
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_HANDLE_BYTES: Final = 64
_LAZY_PEER_ACCESS: Final = 1  # the only flag that there is
# The handle of an allocation, where in it the storage begins, its bytes, and the tensor's offset in that.
_Offer = tuple[bytes, int, int, int]


class _Handle(ctypes.Structure):
    _fields_ = (("opaque", ctypes.c_uint8 * _HANDLE_BYTES),)


class _Bytes:
    """Bytes at an address of the GPU, as torch takes them."""

    def __init__(self, address: int, length: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (length,), "typestr": "|u1", "version": 3}


def save(values: Any, path: str) -> None:
    """Writes lists and dictionaries of tensors and numbers. The caller keeps the tensors until they are loaded."""
    offers: list[_Offer] = []

    def written(x: Tensor) -> Tensor:
        if not x.is_cuda:
            return x
        offers.append(_offer(x))
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")

    tree = tree_map_only(Tensor, written, values)
    if offers:
        torch.cuda.synchronize()
    torch.save({"values": tree, "offers": offers}, path)


def load(path: str) -> Any:
    """What `save` wrote, in memory of this process that is laid out in the same way."""
    saved = torch.load(path, weights_only=True)
    offers = iter(saved["offers"])
    return tree_map_only(Tensor, lambda x: _copied(x, next(offers)) if x.is_meta else x, saved["values"])


def _offer(x: Tensor) -> _Offer:
    address, length = x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()
    if length == 0:
        return b"", 0, 0, 0
    base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
    _driver("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    _driver("cuIpcGetMemHandle", ctypes.byref(handle), base)
    return bytes(handle.opaque), address - base.value, length, int(x.storage_offset())


def _copied(x: Tensor, offer: _Offer) -> Tensor:
    handle, begin, length, offset = offer
    if length == 0:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")
    torch.cuda.synchronize()  # there is a context from here on
    base = ctypes.c_uint64()
    _driver("cuIpcOpenMemHandle_v2", ctypes.byref(base), _Handle.from_buffer_copy(handle), _LAZY_PEER_ACCESS)
    try:
        values = torch.as_tensor(_Bytes(base.value + begin, length), device="cuda").clone().view(x.dtype)
        torch.cuda.synchronize()
    finally:
        _driver("cuIpcCloseMemHandle", base)
    return values.as_strided(x.shape, x.stride(), offset)


def _driver(function: str, *arguments: Any) -> None:
    status = getattr(ctypes.CDLL("libcuda.so.1"), function)(*arguments)
    if status != 0:
        raise RuntimeError(f"CUDA error {status} in {function}: the GPU's memory cannot be shared between processes")
