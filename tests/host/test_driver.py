"""What the driver is told of tensor maps and launches, without a driver."""

import ctypes
import struct
from typing import Any

import pytest
import torch
from cuda.bindings import driver as bindings

from tilesmith.core.device import named
from tilesmith.core.params import BUFFERS, TensorMap
from tilesmith.core.problem import Problem
from tilesmith.planner import choose
from tilesmith.runtime import driver


class Cuda:
    """Stands in for the driver: notes what it is asked for, and writes maps that tell them apart."""

    def __init__(self) -> None:
        self.encoded: list[tuple[Any, ...]] = []
        self.status = 0

    def raw(self, name: str, *arguments: Any) -> Any:
        return {"cuTensorMapEncodeTiled": self.encode, "cuLaunchKernelEx": lambda *_: 0}[name]

    def encode(self, where: int, *arguments: Any) -> int:
        assert where % 64 == 0
        self.encoded.append(arguments)
        ctypes.memset(where, len(self.encoded), 128)
        return self.status


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()
    monkeypatch.setattr(driver, "_raw", cuda.raw)
    monkeypatch.setattr(driver, "_driver", lambda: bindings)
    monkeypatch.setattr(driver, "_encode_tiled", driver._encode_tiled.__wrapped__)
    return cuda


@pytest.mark.parametrize(
    ("dtype", "line_bytes", "dtype_name", "swizzle_name"),
    [
        (torch.float16, 16, "FLOAT16", "NONE"),
        (torch.bfloat16, 32, "BFLOAT16", "32B"),
        (torch.float32, 64, "FLOAT32", "64B"),
        (torch.bfloat16, 128, "BFLOAT16", "128B"),
    ],
)
def test_a_tensor_map_is_encoded_as_the_driver_spells_it(
    cuda: Cuda, dtype: torch.dtype, line_bytes: int, dtype_name: str, swizzle_name: str
) -> None:
    memory = ctypes.create_string_buffer(256)
    where = ctypes.addressof(memory) + -ctypes.addressof(memory) % 64
    driver._encode(TensorMap("a", 32, dtype, (100, 50, 3), (208, 10400), (8, 4, 1), line_bytes), 4096, where)
    (arguments,) = cuda.encoded
    assert arguments == (
        bindings.CUtensorMapDataType[f"CU_TENSOR_MAP_DATA_TYPE_{dtype_name}"],
        3,
        4096 + 32,
        struct.pack("3Q", 100, 50, 3),
        struct.pack("2Q", 208, 10400),
        struct.pack("3I", 8, 4, 1),
        struct.pack("5I", 1, 1, 1, 1, 1),
        bindings.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        bindings.CUtensorMapSwizzle[f"CU_TENSOR_MAP_SWIZZLE_{swizzle_name}"],
        bindings.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        bindings.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )


def test_a_map_that_the_driver_refuses_is_an_error(cuda: Cuda) -> None:
    cuda.status = 1
    memory = ctypes.create_string_buffer(256)
    where = ctypes.addressof(memory) + -ctypes.addressof(memory) % 64
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        driver._encode(TensorMap("a", 0, torch.float16, (64, 8), (128,), (64, 8), 128), 0, where)


def test_arguments_have_addresses_and_maps_in_their_places(cuda: Cuda) -> None:
    a, b = torch.empty(300, 512, device="meta"), torch.empty(512, 400, device="meta")
    buffers = (1 << 20, 2 << 20, 3 << 20, 4 << 20)
    for launch in choose(Problem.of(a, b), named("h200")).launches:
        cuda.encoded.clear()
        own = driver.Launch(driver.Function(1, None), launch)
        own(7, 0, buffers)
        own(7, 0, tuple(2 * address for address in buffers))
        own(7, 0, buffers)
        expected = bytearray(launch.parameters.packed())
        for position, address in launch.parameters.addresses():
            struct.pack_into("<q", expected, position, buffers[BUFFERS.index(address.buffer)] + address.offset)
        maps = list(launch.parameters.tensor_maps())
        for i, (position, _) in enumerate(maps, 1):
            expected[position : position + 128] = bytes([i]) * 128
        assert ctypes.string_at(own._pointers.value or 0, len(expected)) == expected
        assert len(cuda.encoded) == 2 * len(maps), "an address that comes back is not encoded again"
