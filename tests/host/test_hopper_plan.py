"""The plans of the `hopper` family: what it takes, how it cuts the work, and what it tells its kernels."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import launched
import meta_tensors
import pytest
import torch
from launched import DEVICES, Region, addresses_of, constants_of, entries, is_swapped, maps_of, parameters_of

from tilesmith.core.device import KNOWN_GPUS, Device
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.params import Address
from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.core.problem import OUT_DTYPES, Problem
from tilesmith.kernels import realign, split_k_reduce
from tilesmith.kernels.epilogue import EpilogueParameters
from tilesmith.kernels.hopper import constants as gemm
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper import launch as gemm_launch
from tilesmith.kernels.hopper import tiles
from tilesmith.kernels.output import Store
from tilesmith.planner import choose

H200 = KNOWN_GPUS["h200"]
MAX_THREADS_IN_X = 2**31 - 1

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *(((1, 1), (1, 1)), ((4096, 4096), (4096, 4096)), ((8205, 2949), (2949, 5921)), ((32768, 64), (64, 32768))),
    *(((256, 524288), (524288, 256)), ((64, 131072), (131072, 64)), ((1, 8192), (8192, 8192))),
    *(((17, 8192), (8192, 8192)), ((8192, 8192), (8192, 1)), ((8192, 8192), (8192, 5))),
    *(((8192, 8192), (8192, 8)), ((5, 300), (300, 5)), ((130, 70), (70, 24)), ((70000, 8, 16), (70000, 16, 8))),
    *(((7, 1, 33, 65), (1, 9, 65, 17)), ((2, 1, 3, 64, 640), (5, 1, 640, 72)), ((5,), (5, 7))),
]
LAYOUTS = ["nn", "nt", "tn", "tt"]
MULTIPLIED = (torch.float16, torch.bfloat16, torch.float32)  # float32 as sums of terms

meta = partial(meta_tensors.meta, dtype=torch.bfloat16)
laid_out = partial(meta_tensors.laid_out, dtype=torch.bfloat16)
strided = partial(meta_tensors.strided, dtype=torch.bfloat16)


def problems(layouts: Sequence[str] = LAYOUTS) -> Iterator[Problem]:
    """Every shape in every layout; with results of both sizes, and in an `out` of every kind."""
    for (a, b), layout in itertools.product(SHAPES, layouts):
        x, y = laid_out(*a, layout=layout[0]), laid_out(*b, layout=layout[1])
        yield Problem.of(x, y)
        yield Problem.of(x, y, out_dtype=torch.float32)
        shape = Problem.of(x, y).out_shape
        if len(shape) > 1:
            yield Problem.of(x, y, out=laid_out(*shape, layout="t"))
            yield Problem.of(x, y, out=meta(*shape[:-1], shape[-1] + 1)[..., 1:])
            yield Problem.of(x, y, out=meta(*shape[:-1], 2 * shape[-1])[..., ::2])


def constants(plan: Plan) -> gemm.CommonConstants:
    return constants_of(plan.product.kernel, gemm.CommonConstants)


def parameters(plan: Plan) -> gemm_launch.GemmParameters:
    return parameters_of(plan.product, gemm_launch.GemmParameters)


def reduction(plan: Plan) -> split_k_reduce.Parameters:
    return parameters_of(plan.launches[-1], split_k_reduce.Parameters)


def planned(problem: Problem, configuration: hopper.Configuration, device: Device = H200) -> Plan:
    assert hopper.unsuited(problem, device, configuration) is None
    return hopper.plan(problem, device, configuration)


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 1), (10, 0), (12, 0)])
def test_other_gpus_are_rejected_by_name_and_capability(capability: tuple[int, int]) -> None:
    device = replace(H200, name="Some GPU", capability=capability)
    reason = hopper.rejects(Problem.of(meta(64, 64), meta(64, 64)), device)
    assert reason == "needs compute capability 9.0, and Some GPU has {}.{}".format(*capability)


@pytest.mark.parametrize("dtype", [d for d in OUT_DTYPES if d not in MULTIPLIED], ids=str)
def test_other_types_are_rejected_by_name(dtype: torch.dtype) -> None:
    reason = hopper.rejects(Problem.of(meta(64, 64, dtype=dtype), meta(64, 64, dtype=dtype)), H200)
    assert reason == f"multiplies float16, bfloat16 and float32, not {str(dtype).removeprefix('torch.')}"


@pytest.mark.parametrize(
    ("a", "b"), [((3, 0), (0, 5)), ((0, 3), (3, 5)), ((3, 4), (4, 0)), ((0, 3, 4), (0, 4, 5)), ((0,), (0,))], ids=str
)
def test_a_product_without_products_is_rejected(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert hopper.rejects(Problem.of(meta(*a), meta(*b)), H200) == "there is nothing to multiply"


def test_three_batch_dimensions_are_walked_and_four_are_not() -> None:
    three = Problem.of(meta(3, 1, 64, 64), meta(2, 1, 4, 64, 64))
    assert three.batch == (2, 3, 4)
    assert hopper.rejects(three, H200) is None
    four = Problem.of(meta(2, 1, 4, 1, 64, 64), meta(3, 1, 5, 64, 64))
    assert four.batch == (2, 3, 4, 5)
    reason = str(hopper.rejects(four, H200))
    assert "3 batch dimensions" in reason and reason.endswith("has 4")
    assert choose(four, H200).name.startswith("simt")
    # Dimensions that one stride can walk count as one.
    assert hopper.rejects(Problem.of(meta(2, 3, 4, 5, 64, 64), meta(2, 3, 4, 5, 64, 64)), H200) is None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2**31, 1), (1, 8)),
        ((8, 1), (1, 2**31)),
        ((1, 2**31), (2**31, 1)),
        ((2**29, 1), (1, 64)),  # so many tiles
        ((2**20, 8), (8, 2**20)),
        ((2**26, 64, 8), (2**26, 8, 64)),  # so many matrices
    ],
    ids=str,
)
def test_sizes_past_32_bits_are_rejected(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    problem = Problem.of(meta(*a), meta(*b))
    assert "32 bits" in str(hopper.rejects(problem, H200))
    assert choose(problem, H200).family in ("half_mma", "simt")


@pytest.mark.parametrize(
    ("a", "b"),
    [((1, 2**31 - 1), (2**31 - 1, 1)), ((2**26, 64), (64, 64)), ((2**19, 64, 8), (2**19, 8, 64))],
    ids=str,
)
def test_indices_of_the_largest_products_fit_in_32_bits(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    problem = Problem.of(meta(*a), meta(*b))
    assert hopper.rejects(problem, H200) is None
    for candidate in hopper.candidates(problem, H200):
        plan = candidate.plan()
        s, c = parameters(plan).schedule, constants(plan)
        step = plan.product.grid[0] // plan.product.cluster
        assert s.tiles_m * s.tiles_n * s.split_k * s.batches + step < 2**31  # the index, one step past the last
        assert s.tiles_m * c.cluster * c.tile_m < 2**31
        assert s.tiles_n * c.tile_n < 2**31
        assert (s.k_steps * s.split_k + s.longer_parts) * 64 - 1 < 2**31


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (0, 0), (32, 0)])
def test_operands_that_repeat_their_rows_or_columns_are_rejected(strides: tuple[int, int]) -> None:
    for problem in (
        Problem.of(strided((64, 32), strides), meta(32, 64)),
        Problem.of(meta(64, 64), strided((64, 32), strides)),
    ):
        assert "repeats" in str(hopper.rejects(problem, H200))
        plan = choose(problem, H200)
        assert plan.family == "half_mma" and plan.workspace_bytes == 0
    # Those with one row or column do not, nor do batches that share a matrix.
    for problem in (
        Problem.of(strided((1, 32), (0, 1)), meta(32, 64)),
        Problem.of(strided((64, 1), (1, 0)), meta(1, 64)),
        Problem.of(meta(64, 32).expand(3, 64, 32), meta(3, 32, 64)),
    ):
        assert hopper.rejects(problem, H200) is None


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_problem_has_a_candidate(device: Device) -> None:
    sizes = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 128, 300)
    for m, n, layout in itertools.product(sizes, sizes, LAYOUTS):
        for k in (8, 641):
            problem = Problem.of(laid_out(m, k, layout=layout[0]), laid_out(k, n, layout=layout[1]))
            assert next(iter(hopper.candidates(problem, device)), None) is not None, (problem, layout)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_candidate_is_a_legal_launch(device: Device) -> None:
    for problem in problems():
        plans = [(candidate, candidate.plan()) for candidate in hopper.candidates(problem, device)]
        assert plans, problem
        for candidate, plan in plans:
            assert (plan.name, plan.cycles) == (candidate.name, candidate.cycles)
            assert math.isfinite(plan.cycles)
            assert plan.cycles > 0
            assert (plan.problem, plan.device, plan.family) == (problem, device, "hopper")
            product, c = plan.product, constants(plan)
            assert c.stages >= 2
            assert product.kernel.shared_bytes <= device.shared_bytes_per_block
            assert product.cluster == c.cluster
            assert product.cluster <= product.grid[0] <= device.sm_count
            assert product.grid[0] % product.cluster == 0
            threads = product.kernel.threads
            assert threads in (256, 384, 512)
            assert (c.tile_m, c.tile_n) in tiles.TILES
            assert 1 <= plan.split_k <= math.ceil(problem.k / 64)
            registers = 128 * (c.producer_registers + (threads // 128 - 1) * c.consumer_registers)
            assert registers <= device.registers_per_sm
            for launch in plan.launches:
                assert launch.grid[1:] == (1, 1)
                assert 1 <= launch.grid[0] <= MAX_THREADS_IN_X
                assert launch.kernel.threads % 32 == 0
                assert launch.awaits_predecessor
                assert len(launch.parameters.packed()) <= 4096
            others = [launch for launch in plan.launches if launch is not product]
            assert all(launch.cluster == 1 and not launch.multiplies for launch in others)
            for each in maps_of(product):
                launched.assert_the_driver_takes(each)
            a_map, b_map = maps_of(product)[:2]
            assert a_map.dtype == b_map.dtype == problem.a.dtype
            assert a_map.box[:2] == ((64, 64) if c.a_mn_major else (64, c.tile_m))
            assert b_map.box[1] * c.cluster == (64 if c.b_mn_major else c.tile_n)
            assert (c.b_extent if c.b_mn_major else 64) % b_map.box[0] == 0


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_configuration_is_a_candidate_or_has_a_reason_not_to_be(device: Device) -> None:
    excluded_any = False
    for problem in problems():
        configurations = [f"hopper {c}" for c in tiles.configurations(problem, device)]
        candidates = [candidate.name for candidate in hopper.candidates(problem, device)]
        exclusions = {each.candidate: each.reason for each in hopper.exclusions(problem, device)}
        assert len(configurations) == len(set(configurations))
        assert sorted(configurations) == sorted([*candidates, *exclusions])
        assert all(exclusions.values())
        excluded_any |= bool(exclusions)
        for c in tiles.configurations(problem, device):
            reason = hopper.unsuited(problem, device, c)  # why it cannot be; others would only waste
            assert reason is None or exclusions[f"hopper {c}"] == reason
    assert excluded_any


def test_unsuited_says_why() -> None:
    rows, columns = Problem.of(meta(64, 128), meta(128, 512)), Problem.of(meta(64, 128), meta(512, 128).T)
    too_narrow = hopper.Configuration(64, 8)
    assert "8 columns" in str(hopper.unsuited(rows, H200, too_narrow))
    assert hopper.unsuited(columns, H200, too_narrow) is None
    assert "2 blocks" in str(hopper.unsuited(columns, H200, replace(too_narrow, cluster=2)))
    assert "3 parts" in str(hopper.unsuited(rows, H200, hopper.Configuration(64, 128, split_k=3)))
    assert hopper.unsuited(rows, H200, hopper.Configuration(64, 128, split_k=2)) is None
    tall = hopper.Configuration(192, 128)
    assert hopper.unsuited(columns, H200, tall) is None
    odd = meta(64, 513, dtype=torch.float32)[:, :512]
    others = {
        "float32 operands": Problem.of(*(meta(*shape, dtype=torch.float32) for shape in ((64, 128), (128, 512)))),
        "a residual": Problem.of(meta(64, 128), meta(128, 512), epilogue=Epilogue(residual=meta(64, 512))),
        "not aligned": Problem.of(meta(64, 128), meta(128, 512), out_dtype=torch.float32, out=odd),
    }
    for word, problem in others.items():
        reason = str(hopper.unsuited(problem, H200, tall))
        assert "192 rows" in reason and word in reason
    tiny = replace(H200, shared_bytes_per_block=48 * 1024)
    assert str(48 * 1024) in str(hopper.unsuited(rows, tiny, hopper.Configuration(128, 256)))


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((4096, 4096, 1040), (192, 176)),  # 132 tiles: one for each SM
        ((16, 1096, 2048, 1096), (192, 128)),  # less of the last row is empty than with 128
    ],
)
def test_tiles_leave_few_sms_idle_and_few_rows_empty(shape: tuple[int, ...], tile: tuple[int, int]) -> None:
    *batch, m, k, n = shape
    c = constants(choose(Problem.of(meta(*batch, m, k), meta(*batch, k, n)), H200))
    assert (c.tile_m, c.tile_n) == tile


@pytest.mark.parametrize("layout", ["n", "t"])
@pytest.mark.parametrize("tile", tiles.TILES, ids=str)
def test_wide_tiles_load_lines_of_b_in_full_width(tile: tuple[int, int], layout: str) -> None:
    problem = Problem.of(meta(4096, 256), laid_out(256, 4096, layout=layout))
    if hopper.unsuited(problem, H200, hopper.Configuration(*tile)) is None:
        loaded = maps_of(hopper.plan(problem, H200, hopper.Configuration(*tile)).product)[1]
        panel = next(width for width in (64, 32, 16, 8) if tile[1] % width == 0)
        assert loaded.line_bytes == (128 if layout == "t" or tile[1] > 128 else 2 * panel)


@pytest.mark.parametrize("layout", ["n", "t"])
@pytest.mark.parametrize("rows", [*range(1, 129, 7), 4, 16, 32, 33, 63, 65, 96, 126, 128])
def test_few_rows_waste_less_than_half_of_their_tiles_and_copy_nothing(rows: int, layout: str) -> None:
    plan = choose(Problem.of(meta(rows, 8192), laid_out(8192, 8192, layout=layout)), H200)
    c = constants(plan)
    extent = c.tile_n if is_swapped(plan) else c.tile_m
    assert math.ceil(rows / extent) * extent < 2 * max(rows, 8)
    assert "realign" not in entries(plan)
    if rows <= 64:
        assert is_swapped(plan)
        assert c.tile_n >= rows
    assert plan.product.grid[0] * 8 >= H200.sm_count * 7  # most of the SMs read


def test_a_long_k_is_split_and_reduced() -> None:
    plan = choose(Problem.of(meta(256, 524288), meta(524288, 256)), H200)
    assert entries(plan) == ["gemm", "split_k_reduce"]
    assert plan.split_k > 1
    assert f"split_k {plan.split_k}" in plan.name
    assert plan.workspace_bytes == plan.split_k * 256 * 256 * 4
    s = parameters(plan).schedule
    assert (s.split_k, s.k_steps, s.longer_parts) == (plan.split_k, *divmod(524288 // 64, plan.split_k))
    assert s.tiles_m * s.tiles_n * s.split_k * plan.product.cluster >= 0.9 * H200.sm_count
    assert constants(plan).Output == "float"
    assert constants_of(plan.launches[1].kernel, split_k_reduce.Constants).Output == "tilesmith::bfloat16"


def test_a_large_square_is_one_launch_of_the_largest_tile_in_clusters() -> None:
    plan = choose(Problem.of(meta(4096, 4096), meta(4096, 4096)), H200)
    assert entries(plan) == ["gemm"]
    assert plan.name == "hopper 128x256 cluster 2"
    assert (plan.split_k, plan.workspace_bytes) == (1, 0)
    assert (plan.product.grid, plan.product.kernel.threads, plan.product.cluster) == ((132, 1, 1), 384, 2)


@pytest.mark.parametrize(
    ("a", "b", "copied"),
    [
        ((8205, 2949), (2949, 5921), ["a", "b"]),
        ((4096, 4097), (4097, 4096), ["a"]),
        ((4096, 4096), (4096, 4097), ["b"]),
        ((4096, 4096), (4096, 4096), []),
        ((4097, 4096), (4096, 4104), []),
    ],
    ids=str,
)
def test_only_operands_with_odd_lines_are_realigned_and_all_by_one_launch(
    a: tuple[int, ...], b: tuple[int, ...], copied: list[str]
) -> None:
    problem = Problem.of(meta(*a), meta(*b))
    for candidate in hopper.candidates(problem, H200):
        plan = candidate.plan()
        assert entries(plan).count("realign") == (1 if copied else 0)
        if copied:
            assert entries(plan)[0] == "realign"
            sources = [each.buffer for each in addresses_of(plan.launches[0]) if each.buffer != "workspace"]
            assert sources == 2 // len(copied) * (copied[::-1] if is_swapped(plan) else copied)
            assert len({*parameters_of(plan.launches[0], realign.Parameters).copies}) == len(copied)
        order = ["b", "a"] if is_swapped(plan) else ["a", "b"]
        expected = ["workspace" if each in copied else each for each in order]
        assert [each.buffer for each in maps_of(plan.product)[:2]] == expected


@pytest.mark.parametrize(
    ("matrix", "is_copied", "mn_major"),
    [
        (strided((64, 32), (32, 1)), False, False),
        (strided((64, 32), (1, 64)), False, True),
        (strided((64, 32), (40, 1)), False, False),
        (strided((64, 32), (36, 1)), True, False),
        (strided((64, 32), (1, 68)), True, True),
        (strided((64, 32), (32, 1), 8), False, False),
        (strided((64, 32), (32, 1), 4), True, False),
        (strided((64, 32), (1, 64), 1), True, True),
        (strided((64, 32), (64, 2)), True, False),
        (strided((64, 32), (2, 128)), True, True),
        (strided((1, 32), (77, 1)), False, False),
        (strided((1, 32), (77, 2)), True, False),
        (strided((64, 1), (1, 77)), False, True),
        (strided((64, 1), (8, 77)), False, False),
        (strided((64, 1), (3, 77)), True, False),
        (strided((3, 64, 32), (2048, 32, 1)), False, False),
        (strided((3, 64, 32), (2052, 32, 1)), True, False),
        (strided((3, 64, 32), (0, 32, 1)), False, False),
        (strided((3, 64, 32), (2049, 1, 64)), True, True),
        (strided((64, 32), (2**38, 1)), False, False),
        (strided((64, 32), (2**39, 1)), True, False),  # a stride of 2^40 bytes is too long for TMA
    ],
)
def test_operands_are_read_where_they_lie_if_the_copy_engine_can(
    matrix: torch.Tensor, is_copied: bool, mn_major: bool
) -> None:
    batch = matrix.shape[:-2]
    k = matrix.shape[-1]
    c = hopper.Configuration(64, 64)
    as_a = planned(Problem.of(matrix, meta(*batch, k, 64)), c)
    if matrix.shape[-2] == 1:
        c = hopper.Configuration(64, 8)
    assert maps_of(as_a.product)[0].buffer == ("workspace" if is_copied else "a")
    assert constants(as_a).a_mn_major is mn_major
    as_b = planned(Problem.of(meta(*batch, 64, k), matrix.mT), c)
    assert maps_of(as_b.product)[1].buffer == ("workspace" if is_copied else "b")
    assert constants(as_b).b_mn_major is mn_major


@pytest.mark.parametrize(
    ("out", "by_tma", "along_m", "is_partial"),
    [
        (strided((64, 32), (32, 1)), True, False, False),
        (strided((64, 32), (40, 1)), True, False, False),
        (strided((64, 32), (33, 1)), False, False, False),
        (strided((64, 32), (36, 1)), False, False, False),
        (strided((64, 32), (32, 1), 8), True, False, False),
        (strided((64, 32), (32, 1), 1), False, False, False),
        (strided((64, 32), (1, 64)), True, True, False),
        (strided((64, 32), (1, 65)), False, True, False),
        (strided((64, 32), (1, 64), 4), False, True, False),
        (strided((64, 32), (64, 2)), True, False, True),  # partial products lie by themselves
        (strided((64, 32), (2, 128)), True, False, True),
        (strided((1, 32), (77, 1)), True, False, False),
        (strided((1, 32), (77, 3)), True, False, True),
        (strided((64, 1), (3, 77)), False, False, False),
        (strided((64, 1), (1, 77)), True, True, False),
        (strided((3, 64, 32), (2048, 32, 1)), True, False, False),
        (strided((3, 64, 32), (2049, 32, 1)), False, False, False),
    ],
)
def test_out_is_stored_as_its_strides_allow(out: torch.Tensor, by_tma: bool, along_m: bool, is_partial: bool) -> None:
    *batch, m, n = out.shape
    problem = Problem.of(meta(*batch, m, 104), meta(*batch, 104, n), out=out)
    plan = planned(problem, hopper.Configuration(64, 32 if n > 1 else 8))
    c = constants(plan)
    store = Store.BOXES if by_tma else Store.LINES
    assert (c.out_store, c.out_along_m, parameters(plan).out_is_partial) == (store, along_m, is_partial)
    assert len(maps_of(plan.product)) == (3 if by_tma else 2)
    assert [each.buffer for each in addresses_of(plan.product)] == ([] if by_tma else ["out"])
    assert entries(plan) == (["gemm", "split_k_reduce"] if is_partial else ["gemm"])
    assert plan.split_k == 1
    # The transposed product stores the transposed output.
    swapped = constants(planned(problem, hopper.Configuration(64, 32 if m > 1 else 8, swap_ab=True)))
    if m > 1 and n > 1 and not is_partial:
        assert (swapped.out_store, swapped.out_along_m) == (store, not along_m)


def test_sizes_do_not_make_another_kernel_but_where_no_block_has_a_second_tile() -> None:
    few_tiles = [(300, 1000, 2000), (4096, 128, 512)]
    many_tiles = [(4096, 4096, 4096), (8192, 128, 1000), (8448, 128, 520)]
    for tile, waits in (((128, 128), {False, True}), ((128, 256), {True}), ((64, 64), {False})):
        c = hopper.Configuration(*tile, cluster=2)
        few, many = (
            {planned(Problem.of(meta(m, k), meta(k, n)), c).product.kernel for m, k, n in sizes}
            for sizes in (few_tiles, many_tiles)
        )
        assert (len(few), len(many)) == (1, 1)
        assert {constants_of(kernel, gemm.CommonConstants).store_waits for kernel in few | many} == waits


def test_the_product_is_told_its_tiles_and_where_its_lines_go() -> None:
    problem = Problem.of(meta(300, 1000), meta(1000, 500), out=meta(300, 510)[:, :500])
    plan = planned(problem, hopper.Configuration(128, 96, cluster=2))
    p = parameters(plan)
    assert p.out is None
    assert p.out_lines == gemm_launch.OutputLines(first=Address("out"), stride=510, count=300, length=500)
    assert p.schedule.raster_group >= 1
    assert replace(p.schedule, raster_group=0) == gemm_launch.Schedule(
        tiles_m=2,  # of 256 rows
        tiles_n=6,
        split_k=1,
        batches=1,
        k_steps=16,
        longer_parts=0,
        sum_steps=16,
        raster_group=0,
        column_group=6,
    )
    assert p.out_batch_stride == p.a_moves == p.b_moves == (0, 0, 0)
    assert p.batch_size == (1, 1, 1)
    assert plan.product.grid == (2 * 2 * 6, 1, 1)
    assert addresses_of(plan.product) == [Address("out")]
    assert maps_of(plan.product) == [p.a, p.b]


def test_an_out_that_is_stored_along_m_gives_its_columns_as_lines() -> None:
    problem = Problem.of(meta(300, 1000), meta(1000, 500), out=meta(500, 307).T[:300])
    expected = gemm_launch.OutputLines(first=Address("out"), stride=307, count=500, length=300)
    assert parameters(planned(problem, hopper.Configuration(64, 96))).out_lines == expected
    p = parameters(planned(problem, hopper.Configuration(64, 96, swap_ab=True)))
    assert p.out_lines == expected
    assert (p.schedule.tiles_m, p.schedule.tiles_n) == (8, 4)


def test_a_batch_is_walked_fastest_first_and_shared_operands_stay() -> None:
    problem = Problem.of(meta(3, 1, 64, 128), meta(2, 1, 4, 128, 72))
    plan = planned(problem, hopper.Configuration(64, 96))
    p, c = parameters(plan), constants(plan)
    assert p.batch_size == (4, 3, 2)
    assert (p.a_moves, p.b_moves) == ((0, 1, 0), (1, 0, 1))
    assert p.out_batch_stride == (64 * 72, 4 * 64 * 72, 12 * 64 * 72)
    assert (p.schedule.batches, p.schedule.k_steps) == (24, 2)
    assert (c.batch_dims, c.out_batch_dims, p.out_is_partial) == (3, 3, False)
    a_map, b_map, out_map = maps_of(plan.product)
    assert (a_map.sizes, a_map.strides[0], a_map.strides[2]) == ((128, 64, 1, 3, 1), 128 * 2, 64 * 128 * 2)
    assert b_map.sizes == (72, 128, 4, 1, 2)
    assert (b_map.strides[0], b_map.strides[1], b_map.strides[3]) == (72 * 2, 128 * 72 * 2, 4 * 128 * 72 * 2)
    assert out_map.sizes == (72, 64, 4, 3, 2)
    assert out_map.strides == tuple(2 * s for s in (72, 64 * 72, 4 * 64 * 72, 12 * 64 * 72))
    assert (a_map.box, b_map.box, out_map.box) == ((64, 64, 1, 1, 1), (32, 64, 1, 1, 1), (32, 64, 1, 1, 1))


def test_partial_products_of_a_batch_are_one_batch_of_matrices() -> None:
    plan = planned(Problem.of(meta(3, 1, 64, 128), meta(2, 1, 4, 128, 70)), hopper.Configuration(64, 96, split_k=2))
    p, c = parameters(plan), constants(plan)
    assert (c.batch_dims, c.out_batch_dims, c.Output, p.out_is_partial) == (3, 1, "float", True)
    assert (p.schedule.split_k, p.schedule.batches, p.out_batch_stride) == (2, 24, (64 * 72, 0, 0))
    out_map = p.out
    assert out_map is not None and (out_map.buffer, out_map.dtype) == ("workspace", torch.float32)
    assert (out_map.sizes, out_map.strides) == ((70, 64, 48), (72 * 4, 64 * 72 * 4))
    assert reduction(plan) == split_k_reduce.Parameters(
        partial=Address("workspace", out_map.offset),
        out=Address("out"),
        line_stride=70,
        element_stride=1,
        batch_stride=(64 * 70, 4 * 64 * 70, 12 * 64 * 70),
        pitch=72,
        vectors=24 * 64 * 18,
        lines=64,
        length=70,
        split_k=2,
        out_is_aligned=0,
        batch_size=(4, 3, 2),
        epilogue=EpilogueParameters.of(None, 3),
    )
    assert plan.launches[-1].grid == (24 * 64 * 18 // 256, 1, 1)


@pytest.mark.parametrize(("split_k", "turns"), [(2, 1), (3, 2), (4, 2), (5, 4), (8, 4), (9, 8), (128, 8)])
def test_many_splits_are_added_by_several_warps(split_k: int, turns: int) -> None:
    plan = planned(Problem.of(meta(64, 16384), meta(16384, 64)), hopper.Configuration(64, 64, split_k=split_k))
    assert constants_of(plan.launches[-1].kernel, split_k_reduce.Constants).turns == turns
    assert plan.launches[-1].grid == (64 * 64 // 4 // (256 // turns), 1, 1)


@pytest.mark.parametrize(
    ("out", "is_aligned"),
    [
        (strided((64, 32), (32, 1)), True),
        (strided((64, 32), (34, 1)), False),
        (strided((64, 32), (36, 1)), True),
        (strided((64, 32), (36, 1), 2), False),
        (strided((64, 32), (36, 1), 4), True),
        (strided((64, 30), (36, 1)), False),
        (strided((64, 32), (64, 2)), False),
        (strided((64, 32), (1, 64)), True),
        (strided((64, 32), (1, 66)), False),
        (strided((3, 64, 32), (2050, 32, 1)), False),
        (strided((3, 64, 32), (2052, 32, 1)), True),
        (strided((64, 1), (4, 1)), False),
    ],
)
def test_the_reduction_stores_vectors_where_out_allows(out: torch.Tensor, is_aligned: bool) -> None:
    *batch, m, n = out.shape
    problem = Problem.of(meta(*batch, m, 128), meta(*batch, 128, n), out=out)
    plan = planned(problem, hopper.Configuration(64, 32 if n > 1 else 8, split_k=2))
    assert reduction(plan).out_is_aligned == is_aligned


def test_the_realignment_is_told_where_lines_lie_and_where_they_go() -> None:
    a, b = meta(2, 1, 300, 75)[..., :70], meta(3, 70, 1501)
    problem = Problem.of(a, b)
    assert problem.batch == (2, 3)
    plan = planned(problem, hopper.Configuration(64, 96))
    assert entries(plan) == ["realign", "gemm"]
    b_offset = 2 * 300 * 72 * 2 + 255 & -256
    assert parameters_of(plan.launches[0], realign.Parameters).copies == (
        realign.Copy(
            source=Address("a"),
            target=Address("workspace"),
            line_stride=75,
            element_stride=1,
            batch_stride=(22500, 0, 0),
            pitch=72,
            lines=300,
            vectors=600 * 9,
            length=70,
            vectors_of_line=9,
            batch_size=(2, 1, 1),
        ),
        realign.Copy(
            source=Address("b"),
            target=Address("workspace", b_offset),
            line_stride=1501,
            element_stride=1,
            batch_stride=(70 * 1501, 0, 0),
            pitch=1536,
            lines=70,
            vectors=3 * 70 * 188,
            length=1501,
            vectors_of_line=188,
            batch_size=(3, 1, 1),
        ),
    )
    a_map, b_map = maps_of(plan.product)
    assert (a_map.offset, a_map.sizes, a_map.strides) == (0, (70, 300, 1, 2, 1), (144, 32, 300 * 144, 32))
    assert (b_map.offset, b_map.sizes, b_map.strides) == (b_offset, (1501, 70, 3, 1, 1), (3072, 70 * 3072, 32, 32))
    assert plan.workspace_bytes == b_offset + 3 * 70 * 3072 + 255 & -256


def written_by_realign(launch: KernelLaunch) -> list[Region]:
    regions = []
    for copy in dict.fromkeys(parameters_of(launch, realign.Parameters).copies):
        assert copy.target is not None and copy.target.buffer == "workspace"
        lines = copy.lines * math.prod(copy.batch_size)
        assert copy.vectors == lines * copy.vectors_of_line
        last = copy.vectors_of_line * 8  # the kernel writes whole vectors
        assert last >= copy.length > last - 8
        assert copy.pitch % 8 == 0
        assert copy.pitch >= last
        first = copy.target.offset
        regions.append(Region(first, first + ((lines - 1) * copy.pitch + last) * 2))
    return regions


def test_copies_and_partial_products_have_their_own_parts_of_the_workspace() -> None:
    seen = set()
    for problem in problems():
        for candidate in hopper.candidates(problem, H200):
            plan = candidate.plan()
            if plan.workspace_bytes == 0:
                assert entries(plan) == ["gemm"]
                assert {each.buffer for each in maps_of(plan.product)} <= {"a", "b", "out"}
                continue
            a_map, b_map, *out_maps = maps_of(plan.product)
            regions = written_by_realign(plan.launches[0]) if entries(plan)[0] == "realign" else []
            copies = [each for each in (a_map, b_map) if each.buffer == "workspace"]
            for region, each in zip(regions, copies, strict=True):
                assert region.holds(Region.of_map(each))
            if entries(plan)[-1] == "split_k_reduce":
                (out_map,) = out_maps
                reduce = reduction(plan)
                read = Region(out_map.offset, out_map.offset + reduce.split_k * reduce.vectors * 16)
                assert read.holds(Region.of_map(out_map))
                assert reduce.partial == Address("workspace", out_map.offset)
                kernel = plan.launches[-1].kernel
                at_once = kernel.threads // constants_of(kernel, split_k_reduce.Constants).turns
                assert plan.launches[-1].grid[0] * at_once >= reduce.vectors
                regions.append(read)
            launched.assert_apart(regions, plan.workspace_bytes)
            assert plan.workspace_bytes < max(region.end for region in regions) + 256
            seen.add((len(regions), tuple(entries(plan))))
    assert seen == {
        (1, ("realign", "gemm")),
        (2, ("realign", "gemm")),
        (1, ("gemm", "split_k_reduce")),
        (2, ("realign", "gemm", "split_k_reduce")),
        (3, ("realign", "gemm", "split_k_reduce")),
    }
