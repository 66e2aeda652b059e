"""The emulator's tensor cores, TMA and formats of numbers: its headers in C++, against numpy."""

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tensor_core_model import WGMMA_K, tensor_core_step

import tilesmith.emulator
from tilesmith.core.params import TensorMap
from tilesmith.emulator import build
from tilesmith.emulator.tensor_map import encode

Array = npt.NDArray[Any]

ROWS = 64
HEADERS = Path(tilesmith.emulator.__file__).parent / "cxx"
PARTS = Path(__file__).parents[1] / "support" / "emulator_parts.cpp"
FLOAT_NAN, HALF_NAN = 0x7FFFFFFF, 0x7FFF


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The headers, built by the system's compiler."""
    library = tmp_path_factory.mktemp("emulator") / "parts.so"
    options = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{HEADERS}"]
    subprocess.run([build.compiler().path, *options, str(PARTS), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def pointer(array: Array, offset: int = 0) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data + offset)


def words(give: Callable[..., Any], *arguments: Any) -> str:
    text = ctypes.create_string_buffer(200)
    give(*arguments, text, len(text))
    return text.value.decode()


def bfloat16_bits(values: Array) -> Array:
    bits: Array = torch.from_numpy(values.astype(np.float32)).bfloat16().view(torch.int16).numpy().view(np.uint16)
    return bits


def bfloat16_values(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float_bits(values: Array) -> Array:
    return values.astype(np.float32).view(np.uint32)


def step(parts: ctypes.CDLL, dtype: str, sum_: Array, a: Array, b: Array, accumulate: bool = True) -> Array:
    """sum + a b of 64 x 16 and N x 16 bit patterns."""
    result = sum_.astype(np.float32)
    function = getattr(parts, f"multiply_add_{dtype}")
    function(pointer(result), pointer(a), pointer(b), b.shape[0], int(accumulate))
    return result


def values_of(bits: Array, dtype: str) -> Array:
    return (bits.view(np.float16) if dtype == "half" else bfloat16_values(bits)).astype(np.float64)


@np.errstate(all="ignore")
def check_step(parts: ctypes.CDLL, dtype: str, sum_: Array, a: Array, b: Array) -> None:
    name = "float16" if dtype == "half" else dtype
    expected = tensor_core_step(sum_.astype(np.float64), values_of(a, dtype), values_of(b, dtype).T, name)
    ours = step(parts, dtype, sum_, a, b)
    is_nan = np.isnan(expected)
    assert (float_bits(ours)[is_nan] == FLOAT_NAN).all()
    np.testing.assert_array_equal(ours[~is_nan], expected[~is_nan])


def finite_patterns(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """All exponents, subnormals and zeros included."""
    bits = generator.integers(0, 1 << 16, shape, dtype=np.uint16)
    top = 0x7C00 if dtype == "half" else 0x7F80
    return np.where(bits & top == top, bits & ~np.uint16(0x4000), bits)


@pytest.mark.parametrize("columns", [8, 24, 176, 256])
@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
def test_a_step_of_values_alike_is_the_model(parts: ctypes.CDLL, dtype: str, columns: int) -> None:
    generator = np.random.default_rng(columns)
    narrow = (lambda x: x.astype(np.float16).view(np.uint16)) if dtype == "half" else bfloat16_bits
    sum_ = np.zeros((ROWS, columns), np.float32)
    for _ in range(4):
        a, b = narrow(generator.standard_normal((ROWS, 16))), narrow(generator.standard_normal((columns, 16)))
        check_step(parts, dtype, sum_, a, b)
        sum_ = step(parts, dtype, sum_, a, b)


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
def test_a_step_of_any_finite_values_is_the_model(parts: ctypes.CDLL, dtype: str) -> None:
    """Also where products of the one half of K undo those of the other, up to small ones."""
    generator = np.random.default_rng(0)
    for spread in (0, 10, 60, 120):
        a, b = (finite_patterns(generator, (rows, 16), dtype) for rows in (ROWS, 64))
        sum_ = np.ldexp(generator.standard_normal((ROWS, 64)), generator.integers(-spread, spread + 1, (ROWS, 64)))
        check_step(parts, dtype, sum_.astype(np.float32), a, b)
        a[:, 8:15], b[:, 8:15] = a[:, :7] ^ 0x8000, b[:, :7]
        check_step(parts, dtype, np.zeros((ROWS, 64), np.float32), a, b)


def test_small_sums_are_cut_off_to_subnormals(parts: ctypes.CDLL) -> None:
    generator = np.random.default_rng(2)
    a, b = (np.ldexp(generator.standard_normal((64, 16)), -67) for _ in range(2))
    sum_ = np.ldexp(generator.standard_normal((64, 64)), -140).astype(np.float32)
    check_step(parts, "bfloat16", sum_, bfloat16_bits(a), bfloat16_bits(b))


@np.errstate(all="ignore")
@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
def test_infinities_and_nans_are_the_models(parts: ctypes.CDLL, dtype: str) -> None:
    generator = np.random.default_rng(3)
    a, b = (generator.integers(0, 1 << 16, (64, 16), dtype=np.uint16) for _ in range(2))
    a[:48], b[:48] = finite_patterns(generator, (48, 16), dtype), finite_patterns(generator, (48, 16), dtype)
    infinity = 0x7C00 if dtype == "half" else 0x7F80
    a[0, 3], b[5, 7], b[6] = infinity, infinity | 0x8000, 0
    sum_ = generator.standard_normal((64, 64)).astype(np.float32)
    sum_[9, 9], sum_[10, 10], sum_[0, 1], sum_[11, 5] = np.inf, np.nan, -np.inf, np.inf
    check_step(parts, dtype, sum_, a, b)
    ours = step(parts, dtype, sum_, a, b)
    assert float_bits(ours)[0, 6] == FLOAT_NAN  # infinity times zero


def test_too_large_sums_are_infinite(parts: ctypes.CDLL) -> None:
    a = np.zeros((64, 16), np.uint16)
    b = a.copy()
    a[:, 0] = b[:, 0] = bfloat16_bits(np.array([2.0**63]))[0]
    a[1, 0] ^= 0x8000
    sum_ = np.full((64, 64), 1.5 * 2.0**127, np.float32)
    sum_[1] *= -1
    a[2] = 0
    sum_[2] = np.finfo(np.float32).max
    ours = step(parts, "bfloat16", sum_, a, b)
    assert np.isposinf(ours[0]).all()
    assert np.isneginf(ours[1]).all()
    assert (ours[2] == np.finfo(np.float32).max).all()


def test_a_step_may_begin_a_sum(parts: ctypes.CDLL) -> None:
    a = np.full((64, 16), 0x3C00, np.uint16)
    garbage = np.full((64, 8), np.nan, np.float32)
    ours = step(parts, "half", garbage, a, a[:8].copy(), accumulate=False)
    np.testing.assert_array_equal(ours, np.full((64, 8), 16.0))


def test_a_product_of_doubles_is_a_chain(parts: ctypes.CDLL) -> None:
    generator = np.random.default_rng(4)
    a, b = generator.integers(-99, 99, (16, 16)).astype(float), generator.integers(-99, 99, (16, 8)).astype(float)
    sum_ = generator.integers(-99, 99, (16, 8)).astype(float)
    lane = np.arange(32)[:, None]
    row, at = lane // 4, lane % 4
    i, h, e = np.arange(8) // 2, np.arange(8) % 2, np.arange(4) % 2
    a_lanes = np.ascontiguousarray(a[row + 8 * h, 4 * i + at])
    b_lanes = np.ascontiguousarray(b[4 * np.arange(4) + at, row])
    places = row + 8 * (np.arange(4) // 2), 2 * at + e
    lanes = np.ascontiguousarray(sum_[places])
    parts.warp_dmma(pointer(lanes), pointer(a_lanes), pointer(b_lanes))
    np.testing.assert_array_equal(lanes, (sum_ + a @ b)[places])


ALL_HALVES = np.arange(1 << 16, dtype=np.uint16)


def converted(function: Callable[..., Any], values: Array, dtype: type) -> Array:
    result: Array = np.empty(values.shape, dtype)
    function(pointer(result), pointer(values), values.size)
    return result


def test_every_half_has_its_float(parts: ctypes.CDLL) -> None:
    ours = converted(parts.halves_to_floats, ALL_HALVES, np.float32)
    expected = ALL_HALVES.view(np.float16).astype(np.float32)
    is_nan = np.isnan(expected)
    np.testing.assert_array_equal(float_bits(ours), np.where(is_nan, FLOAT_NAN, float_bits(expected)))


@np.errstate(all="ignore")
def test_floats_round_to_halves(parts: ctypes.CDLL) -> None:
    """All halves, what lies between two, what lies next to these, and floats at random."""
    halves = ALL_HALVES.view(np.float16).astype(np.float32)
    between = (halves.astype(np.float64) + np.roll(halves, -1)) / 2
    random = np.random.default_rng(5).integers(0, 1 << 32, 100_000, dtype=np.uint32).view(np.float32)
    middles = between.astype(np.float32)
    edges = np.array([65504, 65519.996, 65520, 1e30, -1e30, 2.0**-25, 2.0**-26, 1e-40], np.float32)
    beside = [np.nextafter(middles, np.float32(end)) for end in (0, np.inf)]
    values = np.concatenate([halves, middles, *beside, random, edges])
    ours = converted(parts.floats_to_halves, values, np.uint16)
    expected = np.where(np.isnan(values), HALF_NAN, values.astype(np.float16).view(np.uint16))
    np.testing.assert_array_equal(ours, expected)


def test_floats_round_to_bfloat16(parts: ctypes.CDLL) -> None:
    lows = np.array([0, 1, 0x7FFF, 0x8000, 0x8001], np.uint32)
    ends = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | lows).ravel()
    random = np.random.default_rng(6).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    values = np.concatenate([ends, random]).view(np.float32)
    ours = converted(parts.floats_to_bfloat16s, values, np.uint16)
    np.testing.assert_array_equal(ours, np.where(np.isnan(values), 0x7FFF, bfloat16_bits(values)))
    np.testing.assert_array_equal(
        float_bits(converted(parts.bfloat16s_to_floats, ALL_HALVES, np.float32)), ALL_HALVES.astype(np.uint32) << 16
    )


PAIRS = {"min": np.fmin, "max_or_nan": np.maximum, "add": np.add}


@np.errstate(all="ignore")
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_halves(parts: ctypes.CDLL, name: str) -> None:
    generator = np.random.default_rng(7)
    edges = np.array([0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 1, 0x8001, 0x7BFF], np.uint16)
    lows = [np.repeat(edges, len(edges)), np.tile(edges, len(edges))]
    x, y = (np.concatenate([low, generator.integers(0, 1 << 16, 2000, dtype=np.uint16)]) for low in lows)
    expected = PAIRS[name](x.view(np.float16), y.view(np.float16)).astype(np.float16)
    is_nan, bits = np.isnan(expected), expected.view(np.uint16).copy()
    both_zero = (x | y) & 0x7FFF == 0  # numpy takes either one
    if name == "min":
        bits[both_zero] = (x | y)[both_zero]
    if name == "max_or_nan":
        bits[both_zero] = (x & y)[both_zero]
    bits[is_nan] = HALF_NAN
    function = getattr(parts, f"pair_{name}")
    function.restype = ctypes.c_uint32
    count = len(x)
    for i in range(count):
        j = (i + 1) % count
        pair = function(int(x[i]) | int(x[j]) << 16, int(y[i]) | int(y[j]) << 16)
        assert pair == int(bits[i]) | int(bits[j]) << 16, (hex(x[i]), hex(y[i]))


def test_the_absolute_value_of_a_pair_has_no_signs(parts: ctypes.CDLL) -> None:
    assert parts.pair_absolute(0xBC008001, 0) == 0x3C000001


def aligned(byte_count: int, alignment: int = 1024) -> Array:
    """Zeros that begin at a multiple of the alignment."""
    memory = np.zeros(byte_count + alignment, np.uint8)
    begin = -memory.ctypes.data % alignment
    return memory[begin : begin + byte_count]


def map_of(tensor: Array, box: tuple[int, ...], line_bytes: int) -> TensorMap:
    """Of a contiguous tensor's view; numpy has the contiguous dimension last."""
    dtype = {2: torch.float16, 4: torch.float32}[tensor.itemsize]
    return TensorMap("a", 0, dtype, tensor.shape[::-1], tensor.strides[-2::-1], box, line_bytes)


def encoded(tensor_map: TensorMap, address: int) -> Array:
    memory = aligned(128, 64)
    memory[:] = np.frombuffer(encode(tensor_map, address), np.uint8)
    return memory


def coordinates_of(at: tuple[int, ...]) -> Any:
    return (ctypes.c_int32 * len(at))(*at)


def random_memory(generator: np.random.Generator, shape: tuple[int, ...], dtype: type) -> Array:
    """At a multiple of 16 bytes, with no zeros."""
    item_bytes = np.dtype(dtype).itemsize
    memory: Array = aligned(int(np.prod(shape)) * item_bytes, 16).view(dtype).reshape(shape)
    memory[:] = generator.integers(1, 1 << 8 * item_bytes, shape)
    return memory


def places_inside(tensor: Array, at: tuple[int, ...], box: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
    """Pairs of indices, in the box and in the tensor. The box's sizes are in numpy's order."""
    for index in np.ndindex(*box):
        place = tuple(first + i for first, i in zip(at[::-1], index, strict=True))
        if all(0 <= p < size for p, size in zip(place, tensor.shape, strict=True)):
            yield index, place


def box_of(tensor: Array, at: tuple[int, ...], box: tuple[int, ...]) -> Array:
    """With zeros where it is outside."""
    found = np.zeros(box[::-1], tensor.dtype)
    for index, place in places_inside(tensor, at, found.shape):
        found[index] = tensor[place]
    return found


def put_box(tensor: Array, at: tuple[int, ...], values: Array) -> None:
    for index, place in places_inside(tensor, at, values.shape):
        tensor[place] = values[index]


def swizzled_lines(box: Array, first_line: int) -> Array:
    """The box's lines, which are as wide as the swizzle, with their 16-byte pieces permuted. `first_line` counts from
    where the pattern begins."""
    lines, line_bytes = box.size // box.shape[-1], box.shape[-1] * box.itemsize
    pieces: Array = box.view(np.uint8).reshape(lines, line_bytes // 16, 16)
    in_pattern = (first_line + np.arange(lines)) * line_bytes // 128 % (line_bytes // 16)
    result = np.empty_like(pieces)
    for line in range(lines):
        result[line, np.arange(line_bytes // 16) ^ in_pattern[line]] = pieces[line]
    return result.ravel()


BOXES = [
    ((0, 0, 0), "inside"),
    ((8, 3, 1), "inside"),
    ((20, 30, 1), "over both ends"),
    ((-3, -5, 0), "before the beginning"),
    ((500, 0, 0), "outside"),
    ((0, 0, 7), "outside of the batch"),
]


@pytest.mark.parametrize("at", [at for at, _ in BOXES], ids=[name for _, name in BOXES])
@pytest.mark.parametrize("dtype, line_bytes", [(np.uint16, 128), (np.uint16, 64), (np.uint16, 32), (np.uint32, 128)])
@pytest.mark.parametrize("first_line", [0, 8])
def test_boxes_of_all_swizzles(
    parts: ctypes.CDLL, dtype: type, line_bytes: int, at: tuple[int, ...], first_line: int
) -> None:
    memory = random_memory(np.random.default_rng(8), (3, 41, 96), dtype)
    tensor = memory[..., :83]
    box = (line_bytes // tensor.itemsize, 16, 2)
    tensor_map = encoded(map_of(tensor, box, line_bytes), tensor.ctypes.data)
    assert words(parts.tensor_map_fault, pointer(tensor_map)) == ""

    expected = box_of(tensor, at, box)
    shared = aligned(16384)
    shared[:] = 0xAA
    begin = first_line * line_bytes
    parts.load_box(pointer(tensor_map), coordinates_of(at), pointer(shared), begin)
    end = begin + expected.nbytes
    np.testing.assert_array_equal(shared[begin:end], swizzled_lines(expected, first_line))
    assert (shared[:begin] == 0xAA).all() and (shared[end:] == 0xAA).all()

    values: Array = np.arange(1, expected.size + 1, dtype=dtype).reshape(expected.shape)
    after = memory.copy()
    put_box(after[..., :83], at, values)
    shared[begin:end] = swizzled_lines(values, first_line)
    parts.store_box(pointer(tensor_map), coordinates_of(at), pointer(shared), begin)
    np.testing.assert_array_equal(memory, after)


def test_a_box_without_a_swizzle_may_be_wide(parts: ctypes.CDLL) -> None:
    tensor = random_memory(np.random.default_rng(9), (20, 256), np.uint16)[:, :250]
    tensor_map = encoded(map_of(tensor, (248, 9), 16), tensor.ctypes.data)
    shared = aligned(8192)
    parts.load_box(pointer(tensor_map), coordinates_of((5, 15)), pointer(shared), 128)
    expected = box_of(tensor, (5, 15), (248, 9))
    np.testing.assert_array_equal(shared[128 : 128 + expected.nbytes].view(np.uint16), expected.ravel())


GOOD_MAP = TensorMap("a", 0, torch.float16, (100, 50), (208,), (64, 8), 128)


@pytest.mark.parametrize(
    "wrong, address, message",
    [
        (GOOD_MAP, 8, "its address is not a multiple of 16"),
        (GOOD_MAP._replace(strides=(200,)), 0, "the stride of dimension 1 is 200 bytes, not a multiple of 16"),
        (GOOD_MAP._replace(box=(64, 257)), 0, "the box of dimension 1 is 257, not 1 to 256"),
        (GOOD_MAP._replace(box=(72, 8)), 0, "a line of its box has 144 bytes, more than its swizzle of 128"),
        (GOOD_MAP._replace(box=(60, 8)), 0, "a line of its box has 120 bytes, not a multiple of 16"),
        (GOOD_MAP._replace(sizes=(2**32 + 1, 50)), 0, "the size of dimension 0 is 4294967297, not 1 to 2^32"),
        (GOOD_MAP._replace(sizes=(100, 0)), 0, "the size of dimension 1 is 0, not 1 to 2^32"),
        (GOOD_MAP._replace(line_bytes=48), 0, "its swizzle is of 48 bytes, not 16, 32, 64 or 128"),
    ],
)
def test_a_wrong_map_is_told_in_words(parts: ctypes.CDLL, wrong: TensorMap, address: int, message: str) -> None:
    assert words(parts.tensor_map_fault, pointer(encoded(wrong, address))) == message


def test_other_memory_is_no_map(parts: ctypes.CDLL) -> None:
    assert words(parts.tensor_map_fault, pointer(aligned(128))) == "it is no tensor map"


def descriptor(address: int, leading_bytes: int, stride_bytes: int, line_bytes: int) -> int:
    swizzle = {16: 0, 128: 1, 64: 2, 32: 3}[line_bytes]
    return address >> 4 | leading_bytes >> 4 << 16 | stride_bytes >> 4 << 32 | swizzle << 62


def gathered(parts: ctypes.CDLL, bits: int, mn_major: bool, rows: int, shared: Array) -> Array:
    operand = np.empty((rows, WGMMA_K), np.uint16)
    parts.gather_operand.restype = ctypes.c_longlong
    arguments = pointer(operand), ctypes.c_uint64(bits), int(mn_major), rows, pointer(shared), 0, len(shared)
    assert parts.gather_operand(*arguments) == -1
    return operand


@pytest.mark.parametrize("mn_major", [False, True], ids=["along K", "along MN"])
@pytest.mark.parametrize("extent", [16, 32, 48, 64, 96, 128, 176, 192, 256])
def test_operands_as_the_copy_engine_leaves_them(parts: ctypes.CDLL, extent: int, mn_major: bool) -> None:
    """OperandTile of tile.cuh: boxes in, parts of 16 of K out."""
    depth, first, first_k = 64, 16, 64
    generator = np.random.default_rng(extent)
    matrix = generator.integers(0, 1 << 16, (300, 200), dtype=np.uint16)  # rows against K
    stored = np.ascontiguousarray(matrix.T if mn_major else matrix)
    tensor = aligned(stored.nbytes, 16).view(np.uint16).reshape(stored.shape)
    tensor[:] = stored

    panel = 64 if not mn_major or extent % 64 == 0 else 32 if extent % 32 == 0 else 16
    lines, line_bytes = (depth if mn_major else extent), 2 * panel
    panel_bytes = lines * line_bytes
    tensor_map = encoded(map_of(tensor, (panel, lines), line_bytes), tensor.ctypes.data)
    shared, tile = aligned(65536), 2048
    for p in range(extent // panel if mn_major else 1):
        at = (first + p * panel, first_k) if mn_major else (first_k, first)
        parts.load_box(pointer(tensor_map), coordinates_of(at), pointer(shared), tile + p * panel_bytes)

    for k in range(0, depth, WGMMA_K):
        address = tile + k // WGMMA_K * (WGMMA_K * line_bytes if mn_major else WGMMA_K * 2)
        bits = descriptor(address, panel_bytes if mn_major else 16, 8 * line_bytes, line_bytes)
        ours = gathered(parts, bits, mn_major, extent, shared)
        ks = slice(first_k + k, first_k + k + WGMMA_K)
        expected = np.zeros((extent, WGMMA_K), np.uint16)
        inside = matrix[first : first + extent, ks]
        expected[: len(inside)] = inside
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("line_bytes", [32, 64])
def test_operands_along_k_in_narrow_lines(parts: ctypes.CDLL, line_bytes: int) -> None:
    matrix = np.random.default_rng(10).integers(0, 1 << 16, (64, line_bytes // 2), dtype=np.uint16)
    shared = aligned(8192)
    shared[1024 : 1024 + matrix.nbytes] = swizzled_lines(matrix, 0)
    for k in range(0, line_bytes // 2, WGMMA_K):
        bits = descriptor(1024 + 2 * k, 16, 8 * line_bytes, line_bytes)
        np.testing.assert_array_equal(gathered(parts, bits, False, 64, shared), matrix[:, k : k + WGMMA_K])


def test_operands_without_a_swizzle(parts: ctypes.CDLL) -> None:
    matrix = np.random.default_rng(11).integers(0, 1 << 16, (64, WGMMA_K), dtype=np.uint16)
    shared = aligned(4096)
    shared[:2048] = np.ascontiguousarray(matrix.reshape(8, 8, 2, 8).transpose(0, 2, 1, 3)).view(np.uint8).ravel()
    np.testing.assert_array_equal(gathered(parts, descriptor(0, 128, 256, 16), False, 64, shared), matrix)


def test_an_operand_outside_of_shared_memory_is_told(parts: ctypes.CDLL) -> None:
    shared, operand = aligned(8192), np.empty((64, 16), np.uint16)
    parts.gather_operand.restype = ctypes.c_longlong
    bits = descriptor(1024, 16, 1024, 128)
    arguments = pointer(operand), ctypes.c_uint64(bits), 0, 64, pointer(shared)
    assert parts.gather_operand(*arguments, 0, 9216) == -1
    assert parts.gather_operand(*arguments, 0, 8192) == 8192
    assert parts.gather_operand(*arguments, 2048, 9216) == 1024


def test_descriptors_of_unknown_layouts_are_told(parts: ctypes.CDLL) -> None:
    assert "base offset is 3" in words(parts.descriptor_fault, ctypes.c_uint64(3 << 49 | 1 << 62), 0)
    assert "MN-major without a swizzle" in words(parts.descriptor_fault, ctypes.c_uint64(0), 1)
    assert words(parts.descriptor_fault, ctypes.c_uint64(1 << 62), 1) == ""


@pytest.mark.parametrize("columns", [8, 176])
def test_each_sum_is_in_one_register(parts: ctypes.CDLL, columns: int) -> None:
    places = {parts.sum_place(thread, i, columns) for thread in range(128) for i in range(columns // 2)}
    assert places == set(range(ROWS * columns))
    assert parts.sum_place(32 + 5, 4 * 0 + 2 + 1, columns) == (16 + 1 + 8) * columns + 3


def test_the_registers_of_a_hold_all_of_it(parts: ctypes.CDLL) -> None:
    expected = np.arange(ROWS * WGMMA_K, dtype=np.uint16).reshape(ROWS, WGMMA_K)
    ours = np.full_like(expected, 0xFFFF)
    for thread in range(128):
        row, k = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
        corners = (row, k), (row + 8, k), (row, k + 8), (row + 8, k + 8)
        registers = np.stack([expected[r, c : c + 2] for r, c in corners]).view(np.uint32)
        parts.place_a(pointer(ours), thread, pointer(registers))
    np.testing.assert_array_equal(ours, expected)


def test_each_element_of_a_matrix_is_in_one_lane(parts: ctypes.CDLL) -> None:
    straight, turned = ([[parts.matrix_element(lane, e, t) for e in (0, 1)] for lane in range(32)] for t in (0, 1))
    np.testing.assert_array_equal(np.ravel(straight), np.arange(64))
    np.testing.assert_array_equal(np.ravel(turned), np.arange(64).reshape(8, 8).T.ravel())
