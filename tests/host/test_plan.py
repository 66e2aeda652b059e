"""The planner: legal launches on every known GPU, and constants that fit the operands' memory."""

import itertools
import math
from dataclasses import replace
from types import ModuleType
from typing import Any

import launched
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launched import addresses_of, constants_of, entries, maps_of, parameters_of, places_of
from meta_tensors import meta, strided
from strategies import batches, strides_for

from tilesmith.core.device import ARCHITECTURES, KNOWN_GPUS, Device, named
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.errors import UnavailableError
from tilesmith.core.params import TensorMap
from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.core.problem import OUT_DTYPES, Matrix, Problem
from tilesmith.kernels import FAMILIES
from tilesmith.kernels.fp64 import skinny
from tilesmith.kernels.hopper import constants as gemm
from tilesmith.kernels.hopper import launch as gemm_launch
from tilesmith.kernels.hopper import tiles
from tilesmith.kernels.mma import fp32 as fp32_mma
from tilesmith.kernels.mma import launch as mma_launch
from tilesmith.kernels.mma.family import FLOAT64, FP64
from tilesmith.kernels.outer import outer
from tilesmith.kernels.simt import family as simt
from tilesmith.kernels.simt import launch as simt_launch
from tilesmith.planner import choose, rejections

H200 = KNOWN_GPUS["h200"]
A100 = KNOWN_GPUS["a100"]
HOPPER = ("h200", "h100", "gh200")
SIXTEEN_BIT_FLOATS = (torch.float16, torch.bfloat16)
TILE_128 = next(tile for tile in simt.TILES[4] if (tile.m, tile.n) == (128, 128))
LOWEST_LIMIT_OF_A_GRID = (2**31 - 1, 65535, 65535)
LOWEST_LIMIT_OF_A_CLUSTER = 8
LOWEST_LIMIT_OF_PARAMETERS = 4096

SHAPES = [
    *(((1, 1), (1, 1)), ((4096, 4096), (4096, 4096)), ((8205, 2949), (2949, 5921)), ((32768, 64), (64, 32768))),
    *(((3, 0), (0, 5)), ((70000, 8, 16), (70000, 16, 8)), ((7, 1, 33, 65), (1, 9, 65, 17)), ((5,), (5, 7))),
    *(((16, 8192), (8192, 48)), ((4096, 64), (64, 8)), ((4096, 64), (64,))),
]


def only_launch(plan: Plan) -> KernelLaunch:
    (launch,) = plan.launches
    assert plan.product is launch
    return launch


def constants(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, tile: simt.Tile = TILE_128
) -> simt_launch.Constants:
    return simt_constants(simt.plan(Problem.of(a, b, out=out), H200, tile))


def simt_constants(plan: Plan) -> simt_launch.Constants:
    return constants_of(only_launch(plan).kernel, simt_launch.Constants)


def simt_parameters(plan: Plan) -> simt_launch.Parameters:
    return parameters_of(only_launch(plan), simt_launch.Parameters)


def operands(plan: Plan) -> tuple[str, ...]:
    """The buffers that simt, mma and outer take for A, B and the output."""
    p = plan.product.parameters
    assert isinstance(p, simt_launch.Parameters | mma_launch.Parameters | outer.Parameters)
    assert p.a is not None and p.b is not None and p.out is not None
    assert p.a.offset == p.b.offset == p.out.offset == 0
    return p.a.buffer, p.b.buffer, p.out.buffer


def tile_area(plan: Plan) -> int:
    assert plan.tiling is not None
    return plan.tiling.rows * plan.tiling.columns


def assert_legal_launch(plan: Plan, launch: KernelLaunch) -> None:
    kernel = launch.kernel
    assert all(1 <= size <= most for size, most in zip(launch.grid, LOWEST_LIMIT_OF_A_GRID, strict=True))
    assert 1 <= launch.cluster <= LOWEST_LIMIT_OF_A_CLUSTER
    assert launch.grid[0] % launch.cluster == 0
    assert 32 <= kernel.threads <= 1024
    assert kernel.threads % 32 == 0
    assert len(launch.parameters.packed()) <= LOWEST_LIMIT_OF_PARAMETERS
    assert kernel.parameters == launch.parameters.declaration()
    assert kernel.shared_bytes <= plan.device.shared_bytes_per_block
    assert (kernel.shared_bytes > 0) == (kernel.entry not in ("split", "realign", "turn", "split_k_reduce", "gemv"))


def bytes_of(matrix: Matrix, batch: tuple[int, ...]) -> int:
    """From the start of the first of a batch of matrices to the end of the last one."""
    sizes = (matrix.rows, matrix.columns, *batch)
    strides = (matrix.row_stride, matrix.column_stride, *matrix.batch_strides)
    return (1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))) * matrix.dtype.itemsize


def bytes_reached(tensor_map: TensorMap) -> int:
    """From the start of a tensor to the end of its last element."""
    lines = sum((size - 1) * stride for size, stride in zip(tensor_map.sizes[1:], tensor_map.strides, strict=True))
    return lines + tensor_map.sizes[0] * tensor_map.dtype.itemsize


def assert_addresses_fit(plan: Plan, launch: KernelLaunch) -> None:
    """They are inside of their buffers, and so is what a tensor map describes."""
    p = plan.problem
    matrices = {"a": p.a, "b": p.b, "out": p.out}
    assert len(addresses_of(launch)) + len(maps_of(launch)) >= 2
    for address in addresses_of(launch):
        if address.buffer == "workspace":
            assert 0 <= address.offset < plan.workspace_bytes
            assert address.offset % 16 == 0
        else:
            assert address.offset == 0
    for tensor_map in maps_of(launch):
        launched.assert_the_driver_takes(tensor_map)
        if tensor_map.buffer == "workspace":
            assert tensor_map.offset + bytes_reached(tensor_map) <= plan.workspace_bytes
        else:
            matrix = matrices[tensor_map.buffer]
            assert (tensor_map.offset, tensor_map.dtype, matrix.alignment) == (0, matrix.dtype, 16)
            assert bytes_reached(tensor_map) <= bytes_of(matrix, p.batch)
    copies = [t for t in maps_of(launch) if t.buffer == "workspace"]
    ranges = sorted((copy.offset, copy.offset + bytes_reached(copy)) for copy in copies)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


def assert_legal(plan: Plan) -> None:
    assert math.isfinite(plan.cycles)
    assert plan.cycles > 0
    for launch in plan.launches:
        assert_legal_launch(plan, launch)
        assert_addresses_fit(plan, launch)
    used = {each.buffer for launch in plan.launches for each in places_of(launch)}
    assert used == {"a", "b", "out"} | ({"workspace"} if plan.workspace_bytes else set())
    assert (plan.workspace_bytes > 0) == (len(plan.launches) > 1)
    assert plan.split_k == 1 or entries(plan)[-1] == "split_k_reduce"
    assert plan.name.partition(" ")[0] == plan.family
    {
        "simt": assert_legal_simt,
        "double_mma": assert_legal_mma,
        "fp64_mma": assert_legal_mma,
        "tf32_mma": assert_legal_mma,
        "half_mma": assert_legal_mma,
        "fp32_mma": assert_legal_mma,
        "int8_mma": assert_legal_mma,
        "skinny": assert_legal_in_doubles,
        "gemv": assert_legal_in_doubles,
        "outer": assert_legal_outer,
        "hopper": assert_legal_hopper,
    }[plan.family](plan)


def assert_legal_simt(plan: Plan) -> None:
    launch = only_launch(plan)
    assert entries(plan) == ["simt"]
    assert launch.grid[1] * launch.grid[2] >= plan.problem.batches
    assert operands(plan) in (("a", "b", "out"), ("b", "a", "out"))
    assert (maps_of(launch), launch.cluster, launch.awaits_predecessor, launch.kernel.wgmma) == ([], 1, False, None)


def assert_legal_outer(plan: Plan) -> None:
    launch = only_launch(plan)
    c = constants_of(launch.kernel, outer.Constants)
    assert operands(plan) in (("a", "b", "out"), ("b", "a", "out"))
    m, n = (plan.problem.m, plan.problem.n) if operands(plan)[0] == "a" else (plan.problem.n, plan.problem.m)
    assert launch.grid == (math.ceil(n / c.tile_n) * plan.problem.batches, math.ceil(m / c.tile_m), 1)
    assert (maps_of(launch), launch.cluster, launch.awaits_predecessor, launch.kernel.wgmma) == ([], 1, True, None)


def assert_legal_mma(plan: Plan) -> None:
    launch, p = plan.product, plan.problem
    prepared = [["realign"], ["turn"], ["turn"] * 2]
    first = [["mma"], ["mma_large"], *([*each, "mma_large"] for each in prepared), ["split", "mma_fp32"] * 2]
    assert entries(plan) in [each + ["split_k_reduce"] * (plan.split_k > 1) for each in first]
    c = constants_of(launch.kernel, mma_launch.Constants)
    grids = [
        (math.ceil(n / c.tile_n) * p.batches, math.ceil(m / c.tile_m), plan.split_k)
        for m, n in ((p.m, p.n), (p.n, p.m))
    ]
    assert launch.grid in grids
    out = "out" if plan.split_k == 1 else "workspace"
    if entries(plan)[0] == "mma":
        assert operands(plan) in (("a", "b", out), ("b", "a", out))
        assert launch.grid == grids[operands(plan)[0] == "b"]
    may_wait = plan.device.capability >= (9, 0)
    assert (maps_of(launch), launch.cluster, launch.awaits_predecessor, launch.kernel.wgmma) == ([], 1, may_wait, None)


def assert_legal_in_doubles(plan: Plan) -> None:
    """Of few rows."""
    assert entries(plan) in ([plan.name], [plan.name, "split_k_reduce"])
    p = plan.product.parameters
    assert plan.product.cluster == (p.cluster if isinstance(p, skinny.Parameters) else 1)
    assert all(launch.awaits_predecessor for launch in plan.launches)
    assert all(launch.cluster == 1 for launch in plan.launches[1:])
    assert not any(maps_of(launch) or launch.kernel.wgmma for launch in plan.launches)


def assert_legal_hopper(plan: Plan) -> None:
    entry = plan.product.kernel.entry
    is_split = plan.problem.a.dtype == torch.float32
    first = [["split", entry] * 2] if is_split else [[entry], ["realign", entry]]
    assert entries(plan) in [[*each, *last] for each in first for last in ([], ["split_k_reduce"])]
    products = [launch for launch in plan.launches if launch.multiplies]
    assert products[0] is plan.product
    for launch in plan.launches:
        assert launch.awaits_predecessor
        assert (launch.cluster == 1 and not maps_of(launch)) or launch in products
        assert (launch.kernel.wgmma is not None) == launch.multiplies == (launch in products)
    others = [address for launch in plan.launches if launch not in products for address in addresses_of(launch)]
    left = {address.offset for address in others if address.buffer == "workspace"}
    found: set[int] = set()
    for product in products:
        assert product.grid[0] <= plan.device.sm_count
        assert product.grid[1:] == (1, 1)
        assert constants_of(product.kernel, gemm.CommonConstants).cluster == product.cluster
        p = product.parameters
        assert isinstance(p, gemm_launch.GemmParameters | gemm_launch.Fp32Parameters)
        assert p.a is not None and p.b is not None and (p.out is None) != (p.out_lines.first is None)
        found |= {each.offset for each in places_of(product) if each.buffer == "workspace"}
    # What one launch leaves in the workspace, another finds there. Only splits know what each K chunk's exponents are.
    assert found <= left
    assert len(left - found) <= (2 if "split" in entries(plan) else 0)


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_every_candidate_is_a_legal_launch(gpu: str, dtype: torch.dtype) -> None:
    device = KNOWN_GPUS[gpu]
    for a, b in SHAPES:
        problem = Problem.of(meta(*a, dtype=dtype), meta(*b, dtype=dtype))
        # simt can do what it leaves to others too.
        for family in FAMILIES:
            if family.rejects(problem, device):
                continue
            candidates = list(family.candidates(problem, device))
            assert candidates
            for candidate in candidates:
                plan = candidate.plan()
                assert (plan.name, plan.cycles) == (candidate.name, candidate.cycles)
                assert (plan.problem, plan.device, plan.family) == (problem, device, family.name)
                assert_legal(plan)


@st.composite
def sixteen_bit_problems(draw: st.DrawFn) -> Problem:
    """Of operands and an output in memory of any kind, at any address."""
    size = st.one_of(st.integers(1, 70), st.integers(1, 9000))
    m, n, k = draw(size), draw(size), draw(size)
    a_batch, b_batch = draw(batches(4))
    dtype = draw(st.sampled_from(SIXTEEN_BIT_FLOATS))
    out_dtype = draw(st.sampled_from(OUT_DTYPES[dtype]))

    def tensor(shape: tuple[int, ...], dtype: torch.dtype, may_expand: bool) -> torch.Tensor:
        return strided(shape, *draw(strides_for(shape, may_expand)), dtype)

    a, b = tensor((*a_batch, m, k), dtype, True), tensor((*b_batch, k, n), dtype, True)
    out_shape = (*torch.broadcast_shapes(a_batch, b_batch), m, n)
    out = tensor(out_shape, out_dtype, False) if draw(st.booleans()) else None
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
    if len(problem.batch) > 3:
        assert plan.family == "simt"
    elif repeats:
        assert plan.family == ("half_mma" if problem.out.dtype == a.dtype == b.dtype else "simt")
    else:
        assert plan.family in ("hopper", "half_mma")


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_the_cheapest_candidate_wins_and_each_of_the_others_has_a_reason(gpu: str, dtype: torch.dtype) -> None:
    device = KNOWN_GPUS[gpu]
    for a, b in SHAPES:
        problem = Problem.of(meta(*a, dtype=dtype), meta(*b, dtype=dtype))
        refused = {family.name: reason for family in FAMILIES if (reason := family.rejects(problem, device))}
        first = next(family for family in FAMILIES if family.name not in refused)
        if not first.is_fallback and not first.leaves_small_to_fallback:
            refused["simt"] = f"is for what no other family can do, and {first.name} can do this"
        legal = [family for family in FAMILIES if family.name not in refused]
        offered = [candidate for family in legal for candidate in family.candidates(problem, device)]
        candidates = {candidate.name: candidate for candidate in offered}
        assert len(candidates) == len(offered)
        plan = choose(problem, device)
        assert plan.cycles == min(candidate.cycles for candidate in offered)
        assert plan == candidates[plan.name].plan()
        others = list(rejections(plan))
        reasons = {rejection.candidate: rejection.reason for rejection in others}
        assert len(reasons) == len(others)
        excluded = {each.candidate: each.reason for family in legal for each in family.exclusions(problem, device)}
        assert reasons.keys() == candidates.keys() - {plan.name} | excluded.keys() | refused.keys()
        for name in candidates.keys() - {plan.name}:
            assert reasons[name] == f"expected to take {candidates[name].cycles / plan.cycles:.2f} times as long"
        for name, reason in (excluded | refused).items():
            assert reasons[name] == reason and reason


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_what_goes_to_tensor_cores_where_there_are_kernels_and_what_to_simt(gpu: str, dtype: torch.dtype) -> None:
    a = meta(1024, 1024, dtype=dtype)
    plan = choose(Problem.of(a, a), KNOWN_GPUS[gpu])
    if gpu in HOPPER and dtype in (torch.float32, *SIXTEEN_BIT_FLOATS):
        assert plan.family == "hopper"
    elif dtype in (SIXTEEN_BIT_FLOATS if KNOWN_GPUS[gpu].capability >= (8, 0) else (torch.float16,)):
        assert plan.family == "half_mma"
    elif dtype == torch.float32 and fp32_mma.runs_on(KNOWN_GPUS[gpu], "fp32"):
        assert plan.family == "fp32_mma"
    elif KNOWN_GPUS[gpu].capability >= (8, 0) and dtype.itemsize == 1:
        assert plan.family == "int8_mma"
    elif dtype == torch.float64 and KNOWN_GPUS[gpu].capability in FLOAT64.capabilities:
        assert plan.family == "double_mma"
    else:
        assert plan.family == plan.product.kernel.entry == "simt"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize(("a", "b"), [((0, 5), (5, 7)), ((3, 5), (5, 0)), ((0, 3, 5), (0, 5, 7)), ((0,), (0, 0))])
def test_an_empty_problem_can_be_planned_and_every_candidate_is_accounted_for(
    a: tuple[int, ...], b: tuple[int, ...], dtype: torch.dtype
) -> None:
    for device in KNOWN_GPUS.values():
        plan = choose(Problem.of(meta(*a, dtype=dtype), meta(*b, dtype=dtype)), device)
        assert plan.problem.is_empty
        assert 0 in only_launch(plan).grid
        others = list(rejections(plan))
        assert [r.candidate for r in others].count("hopper") == 1
        assert len(others) == len(FAMILIES) - 1 + len(simt.TILES[4]) - 1


LARGEST = max(m * n for m, n in tiles.TILES if 4096 % m == 4096 % n == 0)


@pytest.mark.parametrize(
    ("dtype", "device", "largest", "area"),
    [
        *((dtype, H200, 2**14, None) for dtype in (torch.float32, torch.float64, torch.int64)),
        (torch.bfloat16, A100, 2**14, None),
        *((dtype, H200, 2**12, LARGEST) for dtype in SIXTEEN_BIT_FLOATS),  # so that every SM has one
    ],
    ids=str,
)
def test_a_larger_square_gets_no_smaller_a_tile(
    dtype: torch.dtype, device: Device, largest: int, area: int | None
) -> None:
    sizes = [2**e for e in range(5, largest.bit_length())]
    areas = [tile_area(choose(Problem.of(meta(s, s, dtype=dtype), meta(s, s, dtype=dtype)), device)) for s in sizes]
    assert areas == sorted(areas)
    assert areas[0] < areas[-1] == (area or areas[-1])


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
        only_launch(simt.plan(Problem.of(meta(m, k), meta(k, n)), H200, TILE_128)).kernel
        == only_launch(simt.plan(Problem.of(meta(4096, 4096), meta(4096, 4096)), H200, TILE_128)).kernel
    )


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
def test_kernels_are_for_the_own_or_the_nearest_older_architecture(capability: tuple[int, int], arch: str) -> None:
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
    assert (as_a.a_along_k, as_a.a_vector) == (along_k, vector)
    as_b = constants(torch.zeros(*shape[:-2], 8, shape[-1]), matrix.mT)
    assert (as_b.b_along_k, as_b.b_vector) == (along_k, vector)


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
    plan = simt.plan(Problem.of(torch.zeros(64, 16), torch.zeros(16, 32), out=out), H200, TILE_128)
    assert simt_parameters(plan).out_vector == vector


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
def test_vectors_hold_at_most_sixteen_bytes_of_the_arithmetic(dtype: torch.dtype) -> None:
    vector = 2 if dtype.itemsize == 8 else 4
    tile = next(t for t in simt.TILES[max(dtype.itemsize, 4)] if (t.m, t.n) == (128, 128))
    plan = simt.plan(Problem.of(meta(256, 256, dtype=dtype), meta(256, 256, dtype=dtype)), H200, tile)
    values = simt_constants(plan)
    assert (values.a_vector, values.b_vector, simt_parameters(plan).out_vector) == (vector,) * 3


@pytest.mark.parametrize(
    ("a_gap", "b_gap", "vectors"),
    [(0, 0, (4, 4)), (2, 0, (2, 2)), (2, 2, (2, 2)), (1, 0, (1, 4)), (0, 1, (4, 1)), (1, 2, (1, 1)), (1, 1, (1, 1))],
)
def test_few_pairs_of_vectors_have_kernels(a_gap: int, b_gap: int, vectors: tuple[int, int]) -> None:
    for dtype, expected in ((torch.float32, vectors), (torch.int32, vectors if vectors == (4, 4) else (1, 1))):
        a, b = meta(64, 32 + a_gap, dtype=dtype)[:, :32], meta(32, 64 + b_gap, dtype=dtype)[:, :64]
        values = constants(a, b)
        assert (values.a_vector, values.b_vector) == expected


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
    values = simt_constants(plan)
    if operands(plan).index(operand) == 0:
        return values.a_along_k, values.a_vector
    return values.b_along_k, values.b_vector


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
    assert_vectors_fit(matrix, 2 if operands(plan)[0] == "a" else 1, simt_parameters(plan).out_vector)


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
    problem = Problem.of(a, b, accuracy="ieee")
    found = [simt_constants(candidate.plan()) for candidate in simt.candidates(problem, H200)]
    assert len(found) > 1 or is_wide
    assert not is_wide or {c.Index for c in found} == {"long long"}


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_wide_strides_can_be_planned_for_every_type(gpu: str, dtype: torch.dtype) -> None:
    a = meta(64, 2**24, dtype=dtype)[:, :64]
    problem, device = Problem.of(a, a), KNOWN_GPUS[gpu]
    plans = [candidate.plan() for candidate in simt.candidates(problem, device)]
    assert plans
    for plan in plans:
        assert simt_constants(plan).Index == "long long"
        assert simt_parameters(plan).a_stride_m == 2**24
    chosen = choose(problem, device)
    if gpu in HOPPER and dtype in SIXTEEN_BIT_FLOATS:
        assert [tensor_map.strides[0] for tensor_map in maps_of(only_launch(chosen))[:2]] == [2**25, 2**25]
    elif gpu in HOPPER and dtype == torch.float32:
        assert chosen.name.startswith("hopper ")
    else:
        assert chosen in plans


def test_an_outs_stride_needs_no_wide_index() -> None:
    out = meta(64, 2**24)[:, :64]
    assert constants(meta(64, 64), meta(64, 64), out).Index == "int"


def test_a_batch_beyond_the_grids_limit_spreads_over_two_dimensions() -> None:
    plan = simt.plan(Problem.of(meta(200000, 4, 4), meta(200000, 4, 4)), H200, TILE_128)
    assert only_launch(plan).grid == (1, 65535, 4)
    p = simt_parameters(plan)
    assert p.batches == 200000
    assert (p.batch_dims, len(p.batch)) == (1, simt_launch.MAX_BATCH_DIMS)
    assert p.batch[0] == simt_launch.BatchDim(size=200000, a_stride=16, b_stride=16, out_stride=16)


def test_an_out_stored_by_columns_exchanges_the_operands() -> None:
    a, b, out = meta(300, 50), meta(200, 50).T, meta(200, 300).T
    plan = simt.plan(Problem.of(a, b, out=out), H200, TILE_128)
    assert operands(plan) == ("b", "a", "out")
    #  the problem that the kernel sees: out^T = b^T a^T
    p = simt_parameters(plan)
    assert (p.m, p.n, p.k, p.tiles_m, p.tiles_n) == (200, 300, 50, 2, 3)
    assert (p.a_stride_m, p.a_stride_k, p.b_stride_k, p.b_stride_n) == (50, 1, 1, 50)
    assert (p.out_stride_m, p.out_stride_n) == (300, 1)
    assert simt_parameters(plan).out_vector == 4
    assert plan.problem == Problem.of(a, b, out=out)


def test_an_out_stored_by_rows_or_with_gaps_does_not_exchange_the_operands() -> None:
    for out in (meta(300, 200), meta(300, 400)[:, ::2], meta(1, 200)):
        problem = Problem.of(meta(len(out), 50), meta(50, 200), out=out)
        assert operands(simt.plan(problem, H200, TILE_128)) == ("a", "b", "out")


@pytest.mark.parametrize(("family", "has_all"), [(simt, False), (FP64, True)])
def test_two_transposes_exchange_the_operands_unless_there_is_a_kernel_that_reads_them(
    family: ModuleType, has_all: bool
) -> None:
    def order(a: torch.Tensor, b: torch.Tensor, **more: Any) -> tuple[str, ...]:
        candidates = list(family.candidates(Problem.of(a, b, **more), H200))
        (found,) = {operands(candidate.plan()) for candidate in candidates}
        return found

    a, b = meta(64, 300).T, meta(200, 64).T
    assert order(a, b) == ("a", "b", "out")
    as_they_are_read = ("a", "b", "out") if has_all else ("b", "a", "out")
    assert order(a, b, epilogue=Epilogue(activation="relu")) == as_they_are_read
    assert order(meta(64, 301).T, meta(201, 64).T) == as_they_are_read
    assert order(meta(64, 301).T, meta(201, 64).T, out=meta(201, 301).T) == ("b", "a", "out")
    as_they_are_stored = ("b", "a", "out") if has_all else ("a", "b", "out")
    assert order(meta(301, 64), meta(64, 201), out=meta(201, 301).T) == as_they_are_stored
