"""What the driver is told of tensor maps and launches, without a driver."""

import ctypes
import gc
import struct
from typing import Any

import pytest
import torch
from cuda.bindings import driver as bindings

from tilesmith.core.device import named
from tilesmith.core.params import BUFFERS, TensorMap
from tilesmith.core.problem import Problem
from tilesmith.planner import choose
from tilesmith.runtime import driver, launches

BUFFERS_AT = (1 << 20, 2 << 20, 3 << 20, 4 << 20)


class Cuda:
    """Stands in for the driver: notes what it is asked for, and writes maps that tell them apart."""

    def __init__(self) -> None:
        self.encoded: list[tuple[Any, ...]] = []
        self.launched: list[tuple[bytes, int, int]] = []  # the configuration, the function, and where its arguments are
        self.status = 0

    def raw(self, name: str, *arguments: Any) -> Any:
        return {"cuTensorMapEncodeTiled": self.encode, "cuLaunchKernelEx": self.launch}[name]

    def launch(self, config: int, function: int, arguments: int, _: int) -> int:
        where = ctypes.c_void_p.from_address(arguments).value or 0
        assert where % 64 == 0
        self.launched.append((ctypes.string_at(config, 56), function, where))
        return 0

    def encode(self, where: int, *arguments: Any) -> int:
        assert where % 64 == 0
        self.encoded.append(arguments)
        ctypes.memset(where, len(self.encoded), 128)
        return self.status


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()
    monkeypatch.setattr(driver, "raw", cuda.raw)
    monkeypatch.setattr(driver, "bindings", lambda: bindings)
    monkeypatch.setattr(launches, "_encode_tiled", launches._encode_tiled.__wrapped__)
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
    tensor_map = TensorMap("a", 32, dtype, (100, 50, 3), (208, 10400), (8, 4, 1), line_bytes)
    launches._MapSlot.of(tensor_map, 0).encode(4096, where)
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
    slot = launches._MapSlot.of(TensorMap("a", 0, torch.float16, (64, 8), (128,), (64, 8), 128), 0)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        slot.encode(0, where)


def test_arguments_have_addresses_and_maps_in_their_places(cuda: Cuda) -> None:
    """Of all launches, one behind the other; and of a copy, which has memory of its own."""
    a, b = torch.empty(300, 512, device="meta"), torch.empty(512, 400, device="meta")
    plan = choose(Problem.of(a, b), named("h200"))
    first = launches.Launches([driver.Function(i, None) for i in range(len(plan.launches))], plan.launches)
    for own in (first, first.copy()):
        cuda.encoded.clear()
        cuda.launched.clear()
        for stream, factor in ((7, 3), (8, 5), (8, 3)):
            own(stream, 0, tuple(factor * address for address in BUFFERS_AT))
        assert len(cuda.launched) == 3 * len(plan.launches)
        written = 0
        for i, (launch, launched) in enumerate(zip(plan.launches, cuda.launched[-len(plan.launches) :], strict=True)):
            expected = bytearray(launch.parameters.packed())
            for position, address in launch.parameters.addresses():
                struct.pack_into(
                    "<q", expected, position, 3 * BUFFERS_AT[BUFFERS.index(address.buffer)] + address.offset
                )
            for position, _ in launch.parameters.tensor_maps():
                written += 1
                expected[position : position + 128] = bytes([written]) * 128
            config, function, arguments = launched
            assert function == i
            assert ctypes.string_at(arguments, len(expected)) == expected
            *sizes, at_stream = struct.unpack_from("<7I4xq", config)
            assert sizes == [*launch.grid, launch.kernel.threads, 1, 1, launch.kernel.shared_bytes]
            assert at_stream == 8
        assert len(cuda.encoded) == 2 * written, "an address that comes back is not encoded again"


def test_few_containers_stay_of_launches(cuda: Cuda) -> None:
    """The collector of Python visits each of them, in a program that may have thousands of shapes."""
    a, b = torch.empty(300, 512, device="meta"), torch.empty(512, 400, device="meta")
    plan = choose(Problem.of(a, b), named("h200"))
    functions = [driver.Function(i, None) for i in range(len(plan.launches))]
    kept = [launches.Launches(functions, plan.launches) for _ in range(2)]  # what is made once is there
    before = len(gc.get_objects())
    kept += [launches.Launches(functions, plan.launches) for _ in range(10)]
    assert len(gc.get_objects()) - before <= 10 * 20
