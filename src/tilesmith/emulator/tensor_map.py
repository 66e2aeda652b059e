"""Tensor maps as the emulator's TMA reads them: cxx/tensor_map.h has the same struct."""

import struct
from typing import Final

from tilesmith.core.params import TensorMap

_MAX_DIMENSIONS: Final = 5
_MARK: Final = 0x70616D54
# Address; sizes; strides; box; element bytes, rank, line bytes, mark, whether it rounds.
_STRUCT: Final = struct.Struct("<Q5Q4Q5I5I8x")


def encode(tensor_map: TensorMap, address: int) -> bytes:
    """The map of a tensor whose buffer is at `address`. What is wrong with it is found when it is used."""
    return _STRUCT.pack(
        address + tensor_map.offset,
        *_filled(tensor_map.sizes, _MAX_DIMENSIONS),
        *_filled(tensor_map.strides, _MAX_DIMENSIONS - 1),
        *_filled(tensor_map.box, _MAX_DIMENSIONS),
        tensor_map.dtype.itemsize,
        len(tensor_map.sizes),
        tensor_map.line_bytes,
        _MARK,
        int(tensor_map.rounds_to_tf32),
    )


def _filled(values: tuple[int, ...], count: int) -> tuple[int, ...]:
    return values + (0,) * (count - len(values))
