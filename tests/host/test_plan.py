"""The planner: legal launches on every known GPU, and constants that fit the operands' memory."""

import itertools
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
from tilesmith.kernels import FAMILIES, simt, sm90
from tilesmith.plan import Plan, Rejection, Stage, TensorMap, Wgmma
from tilesmith.planner import choose
from tilesmith.problem import OUT_DTYPES, Matrix, Problem

H200 = KNOWN_GPUS["h200"]
A100 = KNOWN_GPUS["a100"]
HOPPER = ("h200", "h100")
SIXTEEN_BIT_FLOATS = (torch.float16, torch.bfloat16)
TILE_128 = next(tile for tile in simt.TILES[4] if (tile.m, tile.n) == (128, 128))
LOWEST_LIMIT_OF_A_GRID = (2**31 - 1, 65535, 65535)
LOWEST_LIMIT_OF_A_CLUSTER = 8
LOWEST_LIMIT_OF_PARAMETERS = 4096

SHAPES = [
    ((1, 1), (1, 1)),
    ((4096, 4096), (4096, 4096)),
    ((8205, 2949), (2949, 5921)),
    ((32768, 64), (64, 32768)),
    ((3, 0), (0, 5)),
    ((70000, 8, 16), (70000, 16, 8)),
    ((7, 1, 33, 65), (1, 9, 65, 17)),
    ((5,), (5, 7)),
    ((16, 8192), (8192, 48)),
    ((4096, 64), (64, 8)),
    ((4096, 64), (64,)),
]


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def only_stage(plan: Plan) -> Stage:
    (stage,) = plan.stages
    assert plan.product is stage
    return stage


def constants(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, tile: simt.Tile = TILE_128
) -> dict[str, Any]:
    return dict(only_stage(simt.plan(Problem.of(a, b, out=out), H200, tile)).kernel.constants)


def operands(stage: Stage) -> tuple[str, ...]:
    """The buffers whose addresses are the first arguments of simt and exact."""
    assert [(address.position, address.offset) for address in stage.addresses] == [(0, 0), (8, 0), (16, 0)]
    return tuple(address.buffer for address in stage.addresses)


def decoded(stage: Stage) -> tuple[int, ...]:
    return struct.unpack(f"<{len(stage.arguments) // 8}q", stage.arguments)


def tile_area(plan: Plan) -> int:
    values = dict(plan.product.kernel.constants)
    return int(values["tile_m"]) * int(values["tile_n"])


# Legal launches.


def assert_legal_launch(plan: Plan, stage: Stage) -> None:
    values = dict(stage.kernel.constants)
    assert all(1 <= size <= most for size, most in zip(stage.grid, LOWEST_LIMIT_OF_A_GRID, strict=True))
    assert 1 <= stage.cluster <= LOWEST_LIMIT_OF_A_CLUSTER
    assert stage.grid[0] % stage.cluster == 0
    assert 32 <= stage.threads <= 1024
    assert stage.threads % 32 == 0
    assert values["threads"] == stage.threads
    assert values["parameter_bytes"] == len(stage.arguments) <= LOWEST_LIMIT_OF_PARAMETERS
    assert stage.kernel.shared_bytes <= plan.device.shared_bytes_per_block
    assert values.get("shared_bytes", 0) == stage.kernel.shared_bytes
    assert (stage.kernel.shared_bytes > 0) == (stage.kernel.entry in ("simt", "sm90", "exact", "thin"))


def bytes_of(matrix: Matrix, batch: tuple[int, ...]) -> int:
    """From the start of the first of a batch of matrices to the end of the last one."""
    sizes = (matrix.rows, matrix.columns, *batch)
    strides = (matrix.row_stride, matrix.column_stride, *matrix.batch_strides)
    return (1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))) * matrix.dtype.itemsize


def bytes_reached(tensor_map: TensorMap) -> int:
    """From the start of a tensor to the end of its last element."""
    lines = sum((size - 1) * stride for size, stride in zip(tensor_map.sizes[1:], tensor_map.strides, strict=True))
    return lines + tensor_map.sizes[0] * tensor_map.dtype.itemsize


def assert_the_driver_takes(tensor_map: TensorMap) -> None:
    assert 2 <= len(tensor_map.sizes) <= 5
    assert len(tensor_map.sizes) == len(tensor_map.box) == len(tensor_map.strides) + 1
    assert all(1 <= size <= 2**32 for size in tensor_map.sizes)
    assert all(0 < stride < 2**40 and stride % 16 == 0 for stride in tensor_map.strides)
    assert all(1 <= size <= 256 for size in tensor_map.box)
    assert tensor_map.line_bytes in (16, 32, 64, 128)
    assert tensor_map.box[0] * tensor_map.dtype.itemsize == tensor_map.line_bytes
    assert tensor_map.offset % 16 == 0


def assert_addresses_fit(plan: Plan, stage: Stage) -> None:
    """Each has its own place in the arguments, and what a tensor map describes is inside of its buffer."""
    p = plan.problem
    matrices = {"a": p.a, "b": p.b, "out": p.out}

    places = [(address.position, address.position + 8) for address in stage.addresses]
    places += [(tensor_map.position, tensor_map.position + 128) for tensor_map in stage.tensor_maps]
    assert len(places) >= 2
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(sorted(places)))
    assert all(stage.arguments[start:end] == bytes(end - start) for start, end in places)

    for address in stage.addresses:
        assert address.position % 8 == 0
        if address.buffer == "workspace":
            assert 0 <= address.offset < plan.workspace_bytes
            assert address.offset % 16 == 0
        else:
            assert address.offset == 0
    for tensor_map in stage.tensor_maps:
        assert_the_driver_takes(tensor_map)
        assert tensor_map.position % 64 == 0
        if tensor_map.buffer == "workspace":
            assert tensor_map.offset + bytes_reached(tensor_map) <= plan.workspace_bytes
        else:
            matrix = matrices[tensor_map.buffer]
            assert (tensor_map.offset, tensor_map.dtype, matrix.alignment) == (0, matrix.dtype, 16)
            assert bytes_reached(tensor_map) <= bytes_of(matrix, p.batch)
    copies = [t for t in stage.tensor_maps if t.buffer == "workspace"]
    ranges = sorted((copy.offset, copy.offset + bytes_reached(copy)) for copy in copies)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


def assert_legal(plan: Plan) -> None:
    assert math.isfinite(plan.cycles)
    assert plan.cycles > 0
    for stage in plan.stages:
        assert_legal_launch(plan, stage)
        assert_addresses_fit(plan, stage)
    addressed = {address.buffer for stage in plan.stages for address in stage.addresses}
    mapped = {tensor_map.buffer for stage in plan.stages for tensor_map in stage.tensor_maps}
    assert addressed | mapped == {"a", "b", "out"} | ({"workspace"} if plan.workspace_bytes else set())

    entries = [stage.kernel.entry for stage in plan.stages]
    if plan.name.startswith("simt "):
        stage = only_stage(plan)
        assert entries == ["simt"]
        assert stage.grid[1] * stage.grid[2] >= plan.problem.batches
        assert operands(stage) in (("a", "b", "out"), ("b", "a", "out"))
        assert (stage.tensor_maps, stage.cluster, stage.awaits_predecessor, stage.kernel.wgmma) == ((), 1, False, None)
        assert (plan.workspace_bytes, plan.splits) == (0, 1)
    elif plan.name.startswith("exact "):
        stage = only_stage(plan)
        assert entries == ["exact"]
        values = dict(stage.kernel.constants)
        matrices = plan.problem.stored_by_rows
        tiles = math.ceil(matrices.m / int(values["tile_m"])), math.ceil(matrices.n / int(values["tile_n"]))
        assert stage.grid == (tiles[1] * plan.problem.batches, tiles[0], 1)
        assert operands(stage) in (("a", "b", "out"), ("b", "a", "out"))
        assert (stage.tensor_maps, stage.cluster, stage.awaits_predecessor, stage.kernel.wgmma) == ((), 1, True, None)
        assert (plan.workspace_bytes, plan.splits) == (0, 1)
    elif plan.name in ("thin", "dot"):
        assert entries in ([plan.name], [plan.name, "reduce"])
        assert (plan.workspace_bytes > 0) == (len(plan.stages) > 1)
        assert plan.splits == 1 or entries[-1] == "reduce"
        assert dict(plan.product.kernel.constants).get("cluster", 1) == plan.product.cluster
        assert all(stage.awaits_predecessor for stage in plan.stages)
        assert all(stage.cluster == 1 for stage in plan.stages[1:])
        assert not any(stage.tensor_maps or stage.kernel.wgmma for stage in plan.stages)
    else:
        assert plan.name.startswith("sm90 ")
        first = [["split", "sm90"] * 2] if plan.problem.a.dtype == torch.float32 else [["sm90"], ["realign", "sm90"]]
        assert entries in [[*each, *last] for each in first for last in ([], ["reduce"])]
        assert (plan.workspace_bytes > 0) == (len(plan.stages) > 1)
        assert plan.splits == 1 or entries[-1] == "reduce"
        products = [stage for stage in plan.stages if stage.kernel.entry == "sm90"]
        assert products[0] is plan.product
        for stage in plan.stages:
            assert stage.awaits_predecessor
            assert (stage.cluster == 1 and not stage.tensor_maps) or stage in products
            assert (stage.kernel.wgmma is not None) == (stage in products)
        others = [address for stage in plan.stages if stage not in products for address in stage.addresses]
        left = {address.offset for address in others if address.buffer == "workspace"}
        found: set[int] = set()
        for product in products:
            assert product.grid[0] <= plan.device.sm_count
            assert product.grid[1:] == (1, 1)
            assert dict(product.kernel.constants)["cluster"] == product.cluster
            assert [t.position for t in product.tensor_maps] in ([0, 128], [0, 128, 256])
            found |= {t.offset for t in product.tensor_maps if t.buffer == "workspace"}
            found |= {address.offset for address in product.addresses if address.buffer == "workspace"}
        # What one stage leaves in the workspace, another finds there. Only splits know what each slab's exponents are.
        assert found <= left
        assert len(left - found) <= (2 if "split" in entries else 0)


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_every_candidate_is_a_legal_launch(gpu: str, dtype: torch.dtype) -> None:
    device = KNOWN_GPUS[gpu]
    for a, b in SHAPES:
        problem = Problem.of(meta(*a, dtype=dtype), meta(*b, dtype=dtype))
        # simt can do what it leaves to others too.
        for family in FAMILIES:
            if family is not simt.FAMILY and family.rejects(problem, device):
                continue
            candidates = list(family.candidates(problem, device))
            assert candidates
            for candidate in candidates:
                plan = candidate.plan()
                assert (plan.name, plan.cycles) == (candidate.name, candidate.cycles)
                assert (plan.problem, plan.device, plan.rejections) == (problem, device, ())
                assert plan.product.kernel.entry == family.name
                assert_legal(plan)


@st.composite
def sixteen_bit_tensors(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, is_out: bool) -> torch.Tensor:
    """A shape in memory: its dimensions in any order, with gaps, repeated if it is an operand, at any address."""
    strides, step = [0] * len(shape), draw(st.sampled_from([1, 1, 1, 2]))
    for dimension in draw(st.permutations(range(len(shape)))):
        strides[dimension] = step
        step = step * shape[dimension] + draw(st.sampled_from([0, 0, 1, 8]))
    if not is_out and draw(st.integers(0, 4)) == 0:
        strides[draw(st.integers(0, len(shape) - 1))] = 0
    offset = draw(st.sampled_from([0, 0, 1, 4, 8]))
    return meta(step + offset, dtype=dtype).as_strided(shape, strides, offset)


@st.composite
def sixteen_bit_problems(draw: st.DrawFn) -> Problem:
    size = st.one_of(st.integers(1, 70), st.integers(1, 9000))
    m, n, k = draw(size), draw(size), draw(size)
    batch = draw(st.lists(st.integers(1, 5), max_size=4))
    a_batch, b_batch = ([each if draw(st.booleans()) else 1 for each in batch] for _ in "ab")
    dtype = draw(st.sampled_from(SIXTEEN_BIT_FLOATS))
    a = draw(sixteen_bit_tensors((*a_batch, m, k), dtype, is_out=False))
    b = draw(sixteen_bit_tensors((*b_batch, k, n), dtype, is_out=False))
    out_dtype = draw(st.sampled_from(OUT_DTYPES[dtype]))
    out_shape = (*map(max, a_batch, b_batch), m, n)
    out = draw(st.one_of(st.none(), sixteen_bit_tensors(out_shape, out_dtype, is_out=True)))
    return Problem.of(a, b, out_dtype=out_dtype, out=out)


@given(sixteen_bit_problems())
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_product_of_16_bit_floats_has_a_legal_plan_on_hopper(problem: Problem) -> None:
    plan = choose(problem, H200)
    assert_legal(plan)
    a, b = problem.a, problem.b
    repeats = any(
        size > 1 and stride == 0
        for size, stride in (
            (problem.m, a.row_stride),
            (problem.k, a.column_stride),
            (problem.k, b.row_stride),
            (problem.n, b.column_stride),
        )
    )
    assert plan.name.partition(" ")[0] == ("simt" if repeats or len(problem.batch) > 3 else "sm90")


def test_rows_that_repeat_are_not_written_out() -> None:
    a = meta(2**20, 1, dtype=torch.bfloat16).expand(2**20, 2**17)
    plan = choose(Problem.of(a, meta(2**17, 16, dtype=torch.bfloat16)), H200)
    assert plan.name.startswith("simt ") and plan.workspace_bytes == 0
    reasons = {rejection.candidate: rejection.reason for rejection in plan.rejections}
    assert reasons["sm90"] == "an operand repeats its rows or columns, and would have to be written out"


# What is chosen.


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_the_cheapest_candidate_wins_and_each_of_the_others_has_a_reason(gpu: str, dtype: torch.dtype) -> None:
    device = KNOWN_GPUS[gpu]
    for a, b in SHAPES:
        problem = Problem.of(meta(*a, dtype=dtype), meta(*b, dtype=dtype))
        refused = {family.name: reason for family in FAMILIES if (reason := family.rejects(problem, device))}
        legal = [family for family in FAMILIES if family.name not in refused]
        offered = [candidate for family in legal for candidate in family.candidates(problem, device)]
        candidates = {candidate.name: candidate for candidate in offered}
        assert len(candidates) == len(offered)
        plan = choose(problem, device)
        assert plan.cycles == min(candidate.cycles for candidate in offered)
        assert replace(plan, rejections=()) == candidates[plan.name].plan()
        reasons = {rejection.candidate: rejection.reason for rejection in plan.rejections}
        assert len(reasons) == len(plan.rejections)
        excluded = {each.candidate: each.reason for family in legal for each in family.exclusions(problem, device)}
        assert reasons.keys() == candidates.keys() - {plan.name} | excluded.keys() | refused.keys()
        for name in candidates.keys() - {plan.name}:
            assert reasons[name] == f"expected to take {candidates[name].cycles / plan.cycles:.2f} times as long"
        for name, reason in (excluded | refused).items():
            assert reasons[name] == reason and reason


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_floats_go_to_the_tensor_cores_of_hopper_and_all_else_to_simt(gpu: str, dtype: torch.dtype) -> None:
    a = meta(1024, 1024, dtype=dtype)
    plan = choose(Problem.of(a, a), KNOWN_GPUS[gpu])
    name = str(dtype).removeprefix("torch.")
    if gpu in HOPPER and dtype == torch.float32:  # where both families can, and the faster one does
        assert plan.product.kernel.entry == "sm90"
        assert {r.candidate.partition(" ")[0] for r in plan.rejections} >= {"sm90", "exact", "simt"}
        assert not {r.candidate for r in plan.rejections} & {"sm90", "exact"}
        return
    if gpu in HOPPER and dtype in SIXTEEN_BIT_FLOATS:
        family, other, reason = "sm90", "simt", "the tensor cores multiply these types faster"
    elif gpu in HOPPER:
        family, other, reason = "simt", "sm90", f"multiplies float16, bfloat16 and float32, not {name}"
    else:
        capability = {"a100": "8.0", "l4": "8.9", "rtx4090": "8.9", "t4": "7.5"}[gpu]
        family, other = "simt", "sm90"
        reason = f"needs compute capability 9.0, and {KNOWN_GPUS[gpu].name} has {capability}"
    assert plan.name.startswith(f"{family} ")
    assert plan.product.kernel.entry == family
    assert [r for r in plan.rejections if r.candidate in ("simt", "sm90")] == [Rejection(other, reason)]


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ((3, 0), (0, 5), "there is nothing to multiply"),
        ((0, 5), (5, 3), "there is nothing to multiply"),
        (
            (2, 1, 2, 1, 8, 8),
            (2, 1, 2, 8, 8),
            "walks 3 batch dimensions at most, and this product has 4",
        ),
        ((8, 2**31), (2**31, 8), "its sizes cannot be counted with 32 bits"),
        ((2**28, 8), (8, 8), "its sizes cannot be counted with 32 bits"),
        ((8, 8), (8, 2**28), "its sizes cannot be counted with 32 bits"),
        ((2**25, 8, 8), (2**25, 8, 8), "its sizes cannot be counted with 32 bits"),
    ],
)
def test_what_the_tensor_cores_cannot_do_goes_to_simt(a: tuple[int, ...], b: tuple[int, ...], reason: str) -> None:
    for dtype in SIXTEEN_BIT_FLOATS:
        plan = choose(Problem.of(meta(*a, dtype=dtype), meta(*b, dtype=dtype)), H200)
        assert plan.name.startswith("simt ")
        assert plan.rejections[0] == Rejection("sm90", reason)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize(("a", "b"), [((0, 5), (5, 7)), ((3, 5), (5, 0)), ((0, 3, 5), (0, 5, 7)), ((0,), (0, 0))])
def test_an_empty_problem_can_be_planned_and_every_candidate_is_accounted_for(
    a: tuple[int, ...], b: tuple[int, ...], dtype: torch.dtype
) -> None:
    for device in KNOWN_GPUS.values():
        plan = choose(Problem.of(meta(*a, dtype=dtype), meta(*b, dtype=dtype)), device)
        assert plan.problem.is_empty
        assert 0 in only_stage(plan).grid
        assert [r.candidate for r in plan.rejections].count("sm90") == 1
        assert len(plan.rejections) == len(FAMILIES) - 1 + len(simt.TILES[4]) - 1


def test_the_product_is_the_stage_with_the_name_of_the_family() -> None:
    problem = Problem.of(meta(300, 1001, dtype=torch.float16), meta(1001, 200, dtype=torch.float16))
    plan = sm90.plan(problem, H200, sm90.Configuration(128, 64, cluster=2, splits=3))
    assert [stage.kernel.entry for stage in plan.stages] == ["realign", "sm90", "reduce"]
    assert plan.product is plan.stages[1]


@pytest.mark.parametrize(
    ("dtype", "device"),
    [(torch.float32, H200), (torch.float64, H200), (torch.int64, H200), (torch.bfloat16, A100)],
    ids=str,
)
def test_a_larger_square_gets_no_smaller_a_tile(dtype: torch.dtype, device: Device) -> None:
    sizes = [2**e for e in range(5, 15)]
    areas = [tile_area(choose(Problem.of(meta(s, s, dtype=dtype), meta(s, s, dtype=dtype)), device)) for s in sizes]
    assert areas == sorted(areas)
    assert areas[0] < areas[-1]


@pytest.mark.parametrize("dtype", SIXTEEN_BIT_FLOATS, ids=str)
def test_tiles_for_the_tensor_cores_grow_until_every_sm_has_one_of_the_largest(dtype: torch.dtype) -> None:
    sizes = [2**e for e in range(5, 13)]
    areas = [tile_area(choose(Problem.of(meta(s, s, dtype=dtype), meta(s, s, dtype=dtype)), H200)) for s in sizes]
    assert areas == sorted(areas)
    assert areas[0] < areas[-1] == max(m * n for m, n in sm90.TILES if 4096 % m == 4096 % n == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_equal_problems_get_equal_plans(dtype: torch.dtype) -> None:
    one = choose(Problem.of(torch.zeros(64, 32, dtype=dtype), torch.zeros(32, 48, dtype=dtype)), H200)
    other = choose(Problem.of(torch.ones(64, 32, dtype=dtype), torch.ones(32, 48, dtype=dtype)), named("H200"))
    assert one == other
    assert hash(one) == hash(other)
    assert one != choose(Problem.of(torch.zeros(64, 32, dtype=dtype), torch.zeros(48, 32, dtype=dtype).T), H200)
    assert one != choose(one.problem, A100)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 32, 48), (640, 320, 480)])
def test_sizes_do_not_make_another_kernel_while_the_tile_and_the_alignment_stay(m: int, n: int, k: int) -> None:
    assert (
        only_stage(simt.plan(Problem.of(meta(m, k), meta(k, n)), H200, TILE_128)).kernel
        == only_stage(simt.plan(Problem.of(meta(4096, 4096), meta(4096, 4096)), H200, TILE_128)).kernel
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
    for dtype in (torch.float32, torch.float16):
        a = meta(64, 64, dtype=dtype)
        assert choose(Problem.of(a, a), device).device.arch == arch
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
        values = dict(only_stage(choose(problem, A100)).kernel.constants)
        return values["Element"], values["Accumulator"], values["Output"]

    assert names(torch.float64) == ("double", "double", "double")
    assert names(torch.float16) == ("tilesmith::float16", "float", "tilesmith::float16")
    assert names(torch.bfloat16, torch.float32) == ("tilesmith::bfloat16", "float", "float")
    assert names(torch.int8, torch.int32) == ("signed char", "unsigned", "int")
    assert names(torch.int64) == ("long long", "unsigned long long", "long long")


def test_the_tensor_cores_multiply_the_operands_type_and_store_the_outputs() -> None:
    for dtype, own_name in ((torch.float16, "tilesmith::float16"), (torch.bfloat16, "tilesmith::bfloat16")):
        for out_dtype, name in ((dtype, own_name), (torch.float32, "float")):
            a = meta(64, 64, dtype=dtype)
            kernel = choose(Problem.of(a, a.T, out_dtype=out_dtype), H200).product.kernel
            values = dict(kernel.constants)
            assert kernel.wgmma == Wgmma(int(values["tile_n"]), dtype, a_mn_major=False, b_mn_major=False)
            assert values["Output"] == name


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
    stage = only_stage(plan)
    values, name = dict(stage.kernel.constants), "ab"[operands(stage).index(operand)]
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
    stage = only_stage(simt.plan(Problem.of(zeros(m, 8), zeros(8, k), out=matrix), H200, tile))
    width = int(dict(stage.kernel.constants)["out_vector"])
    assert_vectors_fit(matrix, 2 if operands(stage)[0] == "a" else 1, width)


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
    problem = Problem.of(a, b, accuracy="ieee")  # for which all tiles do
    stages = [only_stage(candidate.plan()) for candidate in simt.candidates(problem, H200)]
    assert {dict(stage.kernel.constants)["Index"] for stage in stages} == {"long long" if is_wide else "int"}
    assert len(stages) == sum(tile.wide_index or not is_wide for tile in simt.TILES[4])


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_wide_strides_can_be_planned_for_every_type(gpu: str, dtype: torch.dtype) -> None:
    a = meta(64, 2**24, dtype=dtype)[:, :64]
    problem, device = Problem.of(a, a), KNOWN_GPUS[gpu]
    plans = [candidate.plan() for candidate in simt.candidates(problem, device)]
    assert plans
    for plan in plans:
        assert dict(only_stage(plan).kernel.constants)["Index"] == "long long"
        assert decoded(only_stage(plan))[6] == 2**24
    chosen = choose(problem, device)
    if gpu in HOPPER and dtype in SIXTEEN_BIT_FLOATS:
        assert [tensor_map.strides for tensor_map in only_stage(chosen).tensor_maps[:2]] == [(2**25,), (2**25,)]
    elif gpu in HOPPER and dtype == torch.float32:
        assert chosen.name.startswith("sm90 ")
    else:
        assert replace(chosen, rejections=()) in plans


def test_an_outs_stride_needs_no_wide_index() -> None:
    out = meta(64, 2**24)[:, :64]
    assert constants(meta(64, 64), meta(64, 64), out)["Index"] == "int"


# The launch.


def test_the_arguments_are_sizes_strides_tiles_and_batches() -> None:
    stage = only_stage(simt.plan(Problem.of(meta(300, 50), meta(50, 200)), H200, TILE_128))
    assert decoded(stage) == (0, 0, 0, 300, 200, 50, 50, 1, 200, 1, 200, 1, 3, 2, 1, 0, 1, 0, 0, 0)
    assert operands(stage) == ("a", "b", "out")
    assert stage.grid == (6, 1, 1)
    values = dict(stage.kernel.constants)
    assert (values["batch_rank"], values["parameter_bytes"]) == (0, len(stage.arguments))


def test_the_arguments_of_a_batch_name_each_dimension() -> None:
    stage = only_stage(simt.plan(Problem.of(meta(4, 1, 30, 50), meta(1, 2, 20, 50).mT), H200, TILE_128))
    assert decoded(stage) == (
        *(0, 0, 0, 30, 20, 50),
        *(50, 1, 1, 50, 20, 1),
        *(1, 1, 8, 0),
        *(4, 30 * 50, 0, 2 * 30 * 20),
        *(2, 0, 20 * 50, 30 * 20),
    )
    assert stage.grid == (1, 8, 1)
    values = dict(stage.kernel.constants)
    assert (values["batch_rank"], values["parameter_bytes"]) == (2, len(stage.arguments))


def test_a_batch_beyond_the_grids_limit_spreads_over_two_dimensions() -> None:
    stage = only_stage(simt.plan(Problem.of(meta(200000, 4, 4), meta(200000, 4, 4)), H200, TILE_128))
    assert stage.grid == (1, 65535, 4)
    assert decoded(stage)[14:] == (200000, 0, 200000, 16, 16, 16)


def test_an_out_stored_by_columns_exchanges_the_operands() -> None:
    a, b, out = meta(300, 50), meta(200, 50).T, meta(200, 300).T
    plan = simt.plan(Problem.of(a, b, out=out), H200, TILE_128)
    stage = only_stage(plan)
    assert operands(stage) == ("b", "a", "out")
    #  the problem that the kernel sees: out^T = b^T a^T
    assert decoded(stage)[3:14] == (200, 300, 50, 50, 1, 1, 50, 300, 1, 2, 3)
    assert dict(stage.kernel.constants)["out_vector"] == 4
    assert plan.problem == Problem.of(a, b, out=out)


def test_an_out_of_one_column_is_stored_along_it() -> None:
    stage = only_stage(simt.plan(Problem.of(meta(300, 50), meta(50)), H200, TILE_128))
    assert operands(stage) == ("b", "a", "out")
    assert decoded(stage)[3:12] == (1, 300, 50, 0, 1, 1, 50, 0, 1)
    assert dict(stage.kernel.constants)["out_vector"] == 4


def test_an_out_stored_by_rows_or_with_gaps_does_not_exchange_the_operands() -> None:
    for out in (meta(300, 200), meta(300, 400)[:, ::2]):
        plan = simt.plan(Problem.of(meta(300, 50), meta(50, 200), out=out), H200, TILE_128)
        assert operands(only_stage(plan)) == ("a", "b", "out")
    plan = simt.plan(Problem.of(meta(1, 50), meta(50, 200)), H200, TILE_128)
    assert operands(only_stage(plan)) == ("a", "b", "out")
