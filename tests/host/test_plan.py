"""The planner: legal launches on every known GPU, and constants that fit the operands' memory."""

import math
import struct
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilesmith.device import ARCHITECTURES, KNOWN_GPUS, Device, named
from tilesmith.errors import UnavailableError
from tilesmith.kernels import FAMILIES, simt
from tilesmith.plan import Plan
from tilesmith.planner import choose
from tilesmith.problem import OUT_DTYPES, Problem

H200 = KNOWN_GPUS["h200"]
TILE_128 = next(tile for tile in simt.TILES[4] if (tile.m, tile.n) == (128, 128))
LOWEST_LIMIT_OF_A_GRID = (2**31 - 1, 65535, 65535)

SHAPES = [
    ((1, 1), (1, 1)),
    ((4096, 4096), (4096, 4096)),
    ((8205, 2949), (2949, 5921)),
    ((32768, 64), (64, 32768)),
    ((3, 0), (0, 5)),
    ((70000, 8, 16), (70000, 16, 8)),
    ((7, 1, 33, 65), (1, 9, 65, 17)),
    ((5,), (5, 7)),
]


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def constants(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, tile: simt.Tile = TILE_128
) -> dict[str, Any]:
    return dict(simt.plan(Problem.of(a, b, out=out), H200, tile).kernel.constants)


def decoded(plan: Plan) -> tuple[int, ...]:
    return struct.unpack(f"<{len(plan.arguments) // 8}q", plan.arguments)


def tile_area(plan: Plan) -> int:
    values = dict(plan.kernel.constants)
    return int(values["tile_m"]) * int(values["tile_n"])


# What is chosen.


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_every_candidate_is_a_legal_launch(gpu: str, dtype: torch.dtype) -> None:
    device = KNOWN_GPUS[gpu]
    for a, b in SHAPES:
        problem = Problem.of(meta(*a, dtype=dtype), meta(*b, dtype=dtype))
        for family in FAMILIES:
            for plan in family.candidates(problem, device):
                assert all(1 <= size <= most for size, most in zip(plan.grid, LOWEST_LIMIT_OF_A_GRID, strict=True))
                assert plan.grid[1] * plan.grid[2] >= problem.batches
                assert 32 <= plan.threads <= 1024
                assert plan.threads % 32 == 0
                assert 0 < plan.kernel.shared_bytes <= device.shared_bytes_per_block
                assert math.isfinite(plan.cycles)
                assert plan.cycles > 0


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_the_cheapest_candidate_wins_and_each_of_the_others_has_a_reason(gpu: str, dtype: torch.dtype) -> None:
    device = KNOWN_GPUS[gpu]
    for a, b in SHAPES:
        problem = Problem.of(meta(*a, dtype=dtype), meta(*b, dtype=dtype))
        candidates = {plan.name: plan for family in FAMILIES for plan in family.candidates(problem, device)}
        plan = choose(problem, device)
        assert plan.cycles == min(candidate.cycles for candidate in candidates.values())
        assert replace(plan, rejections=()) == candidates[plan.name]
        reasons = {rejection.candidate: rejection.reason for rejection in plan.rejections}
        excluded = {each.candidate: each.reason for family in FAMILIES for each in family.exclusions(problem, device)}
        assert reasons.keys() == candidates.keys() - {plan.name} | excluded.keys()
        for name in candidates.keys() - {plan.name}:
            assert reasons[name] == f"expected to take {candidates[name].cycles / plan.cycles:.2f} times as long"
        for name, reason in excluded.items():
            assert reasons[name] == reason and reason


@pytest.mark.parametrize(("a", "b"), [((0, 5), (5, 7)), ((3, 5), (5, 0)), ((0, 3, 5), (0, 5, 7)), ((0,), (0, 0))])
def test_an_empty_problem_can_be_planned_and_every_candidate_is_accounted_for(
    a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    for device in KNOWN_GPUS.values():
        plan = choose(Problem.of(meta(*a), meta(*b)), device)
        assert plan.problem.is_empty
        assert 0 in plan.grid
        assert len(plan.rejections) == len(simt.TILES[4]) - 1


def test_a_plan_can_be_read() -> None:
    plan = choose(Problem.of(meta(8205, 2949), meta(2949, 5921)), H200)
    lines = plan.describe().splitlines()
    assert lines[0] == "8205 x 2949 x 5921 float32 on NVIDIA H200 (sm_90a)"
    assert lines[1] == f"  {plan.name}: {plan.threads} threads, {plan.kernel.shared_bytes} bytes of shared memory"
    assert lines[2] == f"  grid {plan.grid[0]} x {plan.grid[1]} x {plan.grid[2]}"
    assert lines[3] == f"  {plan.name} is expected to take {plan.cycles:,.0f} clocks of NVIDIA H200, the least of all"
    assert lines[4:] == [f"  not {r.candidate}: {r.reason}" for r in plan.rejections]
    assert len(plan.rejections) == len(simt.TILES[4]) - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16], ids=str)
def test_a_larger_square_gets_no_smaller_a_tile(dtype: torch.dtype) -> None:
    sizes = [2**e for e in range(5, 15)]
    areas = [tile_area(choose(Problem.of(meta(s, s, dtype=dtype), meta(s, s, dtype=dtype)), H200)) for s in sizes]
    assert areas == sorted(areas)
    assert areas[0] < areas[-1]


def test_equal_problems_get_equal_plans() -> None:
    one = choose(Problem.of(torch.zeros(64, 32), torch.zeros(32, 48)), H200)
    other = choose(Problem.of(torch.ones(64, 32), torch.ones(32, 48)), named("H200"))
    assert one == other
    assert hash(one) == hash(other)
    assert one != choose(Problem.of(torch.zeros(64, 32), torch.zeros(48, 32).T), H200)
    assert one != choose(one.problem, KNOWN_GPUS["a100"])


@pytest.mark.parametrize(("m", "n", "k"), [(64, 32, 48), (640, 320, 480)])
def test_sizes_do_not_make_another_kernel_while_the_tile_and_the_alignment_stay(m: int, n: int, k: int) -> None:
    assert (
        simt.plan(Problem.of(meta(m, k), meta(k, n)), H200, TILE_128).kernel
        == simt.plan(Problem.of(meta(4096, 4096), meta(4096, 4096)), H200, TILE_128).kernel
    )


# Devices.


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((7, 5), "sm_75"),
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 7), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((10, 3), "sm_100"),
        ((12, 0), "sm_120a"),
        ((12, 1), "sm_120"),
    ],
)
def test_a_gpu_is_compiled_for_its_own_or_the_nearest_older_architecture(
    capability: tuple[int, int], arch: str
) -> None:
    device = replace(H200, capability=capability)
    assert device.arch == arch
    assert choose(Problem.of(meta(64, 64), meta(64, 64)), device).device.arch == arch
    assert arch in ARCHITECTURES or f"{arch}a" in ARCHITECTURES


@pytest.mark.parametrize("capability", [(5, 2), (6, 1), (7, 0), (11, 0), (13, 0)])
def test_an_unsupported_gpu_is_unavailable_and_named(capability: tuple[int, int]) -> None:
    device = replace(KNOWN_GPUS["t4"], name="Some GPU", capability=capability)
    with pytest.raises(UnavailableError) as info:
        choose(Problem.of(meta(64, 64), meta(64, 64)), device)
    for part in ("Some GPU", "{}.{}".format(*capability), "7.5", "9.0", "12.0"):
        assert part in str(info.value)


def test_known_gpus_are_found_by_any_spelling() -> None:
    assert named("H200") is named("h-200") is KNOWN_GPUS["h200"]
    assert named("RTX 4090") is KNOWN_GPUS["rtx4090"]
    with pytest.raises(ValueError, match=r"unknown GPU 'h300'.*h200"):
        named("h300")


@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_known_gpus_agree_with_themselves(gpu: str) -> None:
    device: Device = KNOWN_GPUS[gpu]
    assert device.arch in ARCHITECTURES
    assert device.shared_bytes_per_block <= device.shared_bytes_per_sm
    assert device.multiply_adds_per_clock in (64, 128)


@pytest.mark.parametrize("size", simt.TILES)
def test_every_tile_divides_evenly_among_whole_warps(size: int) -> None:
    group = 16 // size  # a thread's values lie in groups of 16 bytes, a warp's threads as 4 x 8
    for tile in simt.TILES[size]:
        assert tile.threads % 32 == 0
        assert tile.threads * tile.thread_m * tile.thread_n == tile.m * tile.n
        assert tile.m % (4 * tile.thread_m) == 0
        assert tile.n % (8 * tile.thread_n) == 0
        assert tile.thread_m % group == tile.thread_n % group == 0
        assert tile.m * tile.k % tile.threads == tile.n * tile.k % tile.threads == 0


# How operands are read.


def float32(shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> torch.Tensor:
    """A view of zeros that starts `offset` elements after an aligned address."""
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    storage = torch.zeros(offset + reach)
    assert storage.data_ptr() % 16 == 0
    return storage.as_strided(shape, strides, offset)


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "along_k", "vector"),
    [
        ((64, 32), (32, 1), 0, True, 4),  # by rows
        ((64, 32), (1, 64), 0, False, 4),  # by columns
        ((64, 33), (33, 1), 0, True, 1),  # an odd row length
        ((64, 34), (34, 1), 0, True, 2),
        ((64, 36), (36, 1), 0, True, 4),
        ((63, 32), (1, 63), 0, False, 1),
        ((62, 32), (1, 62), 0, False, 2),
        ((64, 32), (40, 1), 0, True, 4),  # a slice of longer rows
        ((64, 30), (40, 1), 0, True, 2),
        ((64, 31), (40, 1), 0, True, 1),
        ((64, 32), (42, 1), 0, True, 2),
        ((64, 32), (41, 1), 0, True, 1),
        ((64, 32), (40, 1), 1, True, 1),  # which starts at an odd address
        ((64, 32), (40, 1), 2, True, 2),
        ((64, 32), (40, 1), 3, True, 1),
        ((64, 32), (40, 1), 4, True, 4),
        ((64, 32), (1, 64), 2, False, 2),
        ((64, 32), (64, 2), 0, True, 1),  # every other element
        ((64, 32), (2, 128), 0, False, 1),
        ((64, 32), (0, 1), 0, True, 4),  # one row for all
        ((64, 32), (1, 0), 0, False, 4),  # one column for all
        ((1, 32), (32, 1), 0, True, 4),
        ((3, 64, 32), (64 * 32, 32, 1), 0, True, 4),  # batches
        ((3, 64, 32), (64 * 32 + 4, 32, 1), 0, True, 4),
        ((3, 64, 32), (64 * 32 + 2, 32, 1), 0, True, 2),
        ((3, 64, 32), (64 * 32 + 1, 32, 1), 0, True, 1),
        ((3, 64, 32), (64 * 32 + 1, 1, 64), 0, False, 1),
        ((3, 64, 32), (0, 32, 1), 0, True, 4),
    ],
)
def test_reads_follow_the_memory_as_widely_as_it_allows(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, along_k: bool, vector: int
) -> None:
    matrix = float32(shape, strides, offset)
    as_a = constants(matrix, torch.zeros(*shape[:-2], shape[-1], 8))
    assert (as_a["a_along_k"], as_a["a_vector"]) == (along_k, vector)
    as_b = constants(torch.zeros(*shape[:-2], 8, shape[-1]), matrix.mT)
    assert (as_b["b_along_k"], as_b["b_vector"]) == (along_k, vector)


@pytest.mark.parametrize(
    ("strides", "offset", "vector"),
    [
        ((32, 1), 0, 4),
        ((40, 1), 0, 4),
        ((42, 1), 0, 2),
        ((33, 1), 0, 1),
        ((40, 1), 2, 2),
        ((40, 1), 1, 1),
        ((64, 2), 0, 1),
        ((1, 64), 0, 4),
        ((1, 66), 0, 2),
        ((2, 128), 0, 1),
    ],
)
def test_stores_are_as_wide_as_out_allows(strides: tuple[int, int], offset: int, vector: int) -> None:
    out = float32((64, 32), strides, offset)
    assert constants(torch.zeros(64, 16), torch.zeros(16, 32), out)["out_vector"] == vector


@pytest.mark.parametrize(
    ("dtype", "read", "stored"),
    [
        (torch.float64, 2, 2),
        (torch.float32, 4, 4),
        (torch.float16, 8, 4),
        (torch.bfloat16, 8, 4),
        (torch.int8, 8, 4),  # 16 would not divide the tile's depth
        (torch.uint8, 8, 4),
        (torch.int16, 8, 4),
        (torch.int32, 4, 4),
        (torch.int64, 2, 2),
    ],
    ids=str,
)
def test_vectors_hold_at_most_sixteen_bytes(dtype: torch.dtype, read: int, stored: int) -> None:
    tile = next(t for t in simt.TILES[max(dtype.itemsize, 4)] if (t.m, t.n) == (128, 128))
    values = constants(meta(256, 256, dtype=dtype), meta(256, 256, dtype=dtype), tile=tile)
    limit = tile.m * tile.k // tile.threads
    assert (values["a_vector"], values["b_vector"]) == (min(read, limit), min(read, limit))
    assert values["out_vector"] == stored


def test_the_types_are_named_as_cuda_names_them() -> None:
    def names(dtype: torch.dtype, out_dtype: torch.dtype | None = None) -> tuple[object, ...]:
        problem = Problem.of(meta(8, 8, dtype=dtype), meta(8, 8, dtype=dtype), out_dtype=out_dtype)
        values = dict(choose(problem, H200).kernel.constants)
        return values["Element"], values["Accumulator"], values["Output"]

    assert names(torch.float64) == ("double", "double", "double")
    assert names(torch.float16) == ("tilesmith::float16", "float", "tilesmith::float16")
    assert names(torch.bfloat16, torch.float32) == ("tilesmith::bfloat16", "float", "float")
    assert names(torch.int8, torch.int32) == ("signed char", "unsigned", "int")
    assert names(torch.int64) == ("long long", "unsigned long long", "long long")


def test_shared_memory_is_two_buffers_of_both_tiles_with_padding_where_vectors_run_along_k() -> None:
    rows, columns = meta(256, 256), meta(256, 256).T
    for a in (rows, columns):
        for b in (rows, columns):
            values = constants(a, b)
            assert values["a_pitch"] == (132 if values["a_along_k"] else 128)
            assert values["b_pitch"] == (132 if values["b_along_k"] else 128)
            assert values["shared_bytes"] == 2 * TILE_128.k * (values["a_pitch"] + values["b_pitch"]) * 4
    depth = 2 * TILE_128.k * 4
    sizes = [constants(a, b)["shared_bytes"] for a, b in [(columns, rows), (rows, rows), (rows, columns)]]
    assert sizes == [256 * depth, 260 * depth, 264 * depth]


matrices = st.builds(
    lambda rows, columns, gap, transposed, offset, batch, batch_gap, dtype: (
        torch.zeros(4096, dtype=dtype)
        .as_strided((batch, rows, columns), (rows * (columns + gap) + batch_gap, columns + gap, 1), offset)
        .transpose(1, 2 if transposed else 1)
    ),
    rows=st.integers(1, 17),
    columns=st.integers(1, 17),
    gap=st.integers(0, 8),
    transposed=st.booleans(),
    offset=st.integers(0, 16),
    batch=st.integers(1, 3),
    batch_gap=st.integers(0, 8),
    dtype=st.sampled_from(list(OUT_DTYPES)),
)


def assert_vectors_fit(matrix: torch.Tensor, dim: int, vector: int) -> None:
    """Vectors along a dimension are whole, contiguous and aligned, wherever they lie."""
    lines = matrix.movedim(dim, -1)
    assert vector == 1 or (lines.stride(-1) == 1 and lines.shape[-1] % vector == 0)
    for line in (row for single in lines for row in single):
        assert line.data_ptr() % (vector * matrix.itemsize) == 0


def reading(plan: Plan, operand: str) -> tuple[bool, int]:
    """How the kernel reads the caller's a or b."""
    values, name = dict(plan.kernel.constants), "ab"[plan.operands.index(operand)]
    return bool(values[f"{name}_along_k"]), int(values[f"{name}_vector"])


@given(matrices, st.sampled_from([0, 1, 2, 3, 4]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_vector_straddles_an_edge_or_an_alignment(matrix: torch.Tensor, tile_index: int) -> None:
    def zeros(rows: int, columns: int) -> torch.Tensor:
        return torch.zeros(batch, rows, columns, dtype=matrix.dtype)

    batch, m, k = matrix.shape
    tiles = simt.TILES[8 if matrix.itemsize == 8 else 4]
    tile = tiles[tile_index % len(tiles)]
    along_k, vector = reading(simt.plan(Problem.of(matrix, zeros(k, 16)), H200, tile), "a")
    assert_vectors_fit(matrix, 2 if along_k else 1, vector)
    along_k, vector = reading(simt.plan(Problem.of(zeros(16, k), matrix.mT), H200, tile), "b")
    assert_vectors_fit(matrix, 2 if along_k else 1, vector)
    plan = simt.plan(Problem.of(zeros(m, 8), zeros(8, k), out=matrix), H200, tile)
    width = int(dict(plan.kernel.constants)["out_vector"])
    assert_vectors_fit(matrix, 2 if plan.operands[0] == "a" else 1, width)


# Large tensors.


@pytest.mark.parametrize(
    ("a", "b", "is_wide"),
    [
        (meta(70000, 40000), meta(40000, 8), False),  # addresses have 64 bits: 2^31 elements are no limit
        (meta(50000, 8), meta(8, 50000), False),
        (meta(3, 50000, 50000), meta(3, 50000, 8), False),
        (meta(4, 2**23 - 8)[:, :8], meta(8, 4), False),
        (meta(4, 2**23)[:, :8], meta(8, 4), True),  # a step inside of a tile
        (meta(8, 2**23)[:, :4].T, meta(8, 4), True),
        (meta(4, 8), meta(8, 2**23), True),
        (meta(4, 8), meta(4, 2**23)[:, :8].T, True),
        (meta(1, 8).expand(2**31, 8), meta(8, 1), True),  # a size
        (meta(8), meta(8, 1).expand(8, 2**31), True),
        (meta(1).expand(2**31), meta(1).expand(2**31), True),
    ],
)
def test_the_index_is_wide_where_a_size_or_a_step_in_a_tile_needs_more_than_31_bits(
    a: torch.Tensor, b: torch.Tensor, is_wide: bool
) -> None:
    plans = list(simt.candidates(Problem.of(a, b), H200))
    assert {dict(plan.kernel.constants)["Index"] for plan in plans} == {"long long" if is_wide else "int"}
    assert len(plans) == sum(tile.wide_index or not is_wide for tile in simt.TILES[4])


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_wide_strides_can_be_planned_for_every_type(gpu: str, dtype: torch.dtype) -> None:
    a = meta(64, 2**24, dtype=dtype)[:, :64]
    plan = choose(Problem.of(a, a), KNOWN_GPUS[gpu])
    assert dict(plan.kernel.constants)["Index"] == "long long"
    assert decoded(plan)[6] == 2**24


def test_an_outs_stride_needs_no_wide_index() -> None:
    out = meta(64, 2**24)[:, :64]
    assert constants(meta(64, 64), meta(64, 64), out)["Index"] == "int"


# The launch.


def test_the_arguments_are_sizes_strides_tiles_and_batches() -> None:
    plan = simt.plan(Problem.of(meta(300, 50), meta(50, 200)), H200, TILE_128)
    assert decoded(plan) == (0, 0, 0, 300, 200, 50, 50, 1, 200, 1, 200, 1, 3, 2, 1, 1, 0, 0, 0)
    assert plan.operands == ("a", "b", "out")
    assert plan.grid == (6, 1, 1)
    values = dict(plan.kernel.constants)
    assert (values["batch_rank"], values["parameter_bytes"]) == (0, len(plan.arguments))


def test_the_arguments_of_a_batch_name_each_dimension() -> None:
    plan = simt.plan(Problem.of(meta(4, 1, 30, 50), meta(1, 2, 20, 50).mT), H200, TILE_128)
    assert decoded(plan) == (
        *(0, 0, 0, 30, 20, 50),
        *(50, 1, 1, 50, 20, 1),
        *(1, 1, 8),
        *(4, 30 * 50, 0, 2 * 30 * 20),
        *(2, 0, 20 * 50, 30 * 20),
    )
    assert plan.grid == (1, 8, 1)
    values = dict(plan.kernel.constants)
    assert (values["batch_rank"], values["parameter_bytes"]) == (2, len(plan.arguments))


def test_a_batch_beyond_the_grids_limit_spreads_over_two_dimensions() -> None:
    plan = simt.plan(Problem.of(meta(200000, 4, 4), meta(200000, 4, 4)), H200, TILE_128)
    assert plan.grid == (1, 65535, 4)
    assert decoded(plan)[14:] == (200000, 200000, 16, 16, 16)


def test_an_out_stored_by_columns_exchanges_the_operands() -> None:
    a, b, out = meta(300, 50), meta(200, 50).T, meta(200, 300).T
    plan = simt.plan(Problem.of(a, b, out=out), H200, TILE_128)
    assert plan.operands == ("b", "a", "out")
    #  the problem that the kernel sees: out^T = b^T a^T
    assert decoded(plan)[3:14] == (200, 300, 50, 50, 1, 1, 50, 300, 1, 2, 3)
    assert dict(plan.kernel.constants)["out_vector"] == 4
    assert plan.problem == Problem.of(a, b, out=out)


def test_an_out_of_one_column_is_stored_along_it() -> None:
    plan = simt.plan(Problem.of(meta(300, 50), meta(50)), H200, TILE_128)
    assert plan.operands == ("b", "a", "out")
    assert decoded(plan)[3:12] == (1, 300, 50, 0, 1, 1, 50, 0, 1)
    assert dict(plan.kernel.constants)["out_vector"] == 4


def test_an_out_stored_by_rows_or_with_gaps_does_not_exchange_the_operands() -> None:
    for out in (meta(300, 200), meta(300, 400)[:, ::2]):
        assert simt.plan(Problem.of(meta(300, 50), meta(50, 200), out=out), H200, TILE_128).operands[0] == "a"
    assert simt.plan(Problem.of(meta(1, 50), meta(50, 200)), H200, TILE_128).operands == ("a", "b", "out")
