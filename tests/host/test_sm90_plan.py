"""The plans of the `sm90` family: what it takes, how it cuts the work, and what it tells its kernels."""

import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch

from tilesmith.device import KNOWN_GPUS, Device
from tilesmith.epilogue import Epilogue
from tilesmith.jit import compiler, source
from tilesmith.kernels import FAMILIES, simt, sm90
from tilesmith.kernels.result import Store
from tilesmith.plan import Kernel, Plan, Stage, TensorMap
from tilesmith.planner import choose
from tilesmith.problem import OUT_DTYPES, Problem

H200 = KNOWN_GPUS["h200"]
DEVICES = {
    "h200": H200,
    "h100": KNOWN_GPUS["h100"],
    "78 SMs": replace(H200, sm_count=78),
    "7 SMs": replace(H200, sm_count=7),
    "100 KB": replace(H200, shared_bytes_per_block=100 * 1000),
    "78 SMs and 100 KB": replace(H200, sm_count=78, shared_bytes_per_block=100 * 1000),
}
MOST_THREADS_IN_X = 2**31 - 1

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1, 1), (1, 1)),
    ((4096, 4096), (4096, 4096)),
    ((8205, 2949), (2949, 5921)),
    ((32768, 64), (64, 32768)),
    ((256, 524288), (524288, 256)),
    ((64, 131072), (131072, 64)),
    ((1, 8192), (8192, 8192)),
    ((17, 8192), (8192, 8192)),
    ((8192, 8192), (8192, 1)),
    ((8192, 8192), (8192, 5)),
    ((8192, 8192), (8192, 8)),
    ((5, 300), (300, 5)),
    ((130, 70), (70, 24)),
    ((70000, 8, 16), (70000, 16, 8)),
    ((7, 1, 33, 65), (1, 9, 65, 17)),
    ((2, 1, 3, 64, 640), (5, 1, 640, 72)),
    ((5,), (5, 7)),
]
LAYOUTS = ["nn", "nt", "tn", "tt"]
MULTIPLIED = (torch.float16, torch.bfloat16, torch.float32)  # float32 as sums of planes


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def laid_out(*shape: int, layout: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """By rows ("n") or by columns ("t")."""
    if len(shape) < 2 or layout == "n":
        return meta(*shape, dtype=dtype)
    return meta(*shape[:-2], shape[-1], shape[-2], dtype=dtype).mT


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


def constants(kernel: Kernel) -> dict[str, Any]:
    return dict(kernel.constants)


def entries(plan: Plan) -> list[str]:
    return [stage.kernel.entry for stage in plan.stages]


def planned(problem: Problem, configuration: sm90.Configuration, device: Device = H200) -> Plan:
    assert sm90.unsuited(problem, device, configuration) is None
    return sm90.plan(problem, device, configuration)


def is_swapped(plan: Plan) -> bool:
    return "transposed" in plan.name


# What the family takes.


@pytest.mark.parametrize("dtype", MULTIPLIED, ids=str)
@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_hopper_multiplies_both_16_bit_floats_and_float32(device: Device, dtype: torch.dtype) -> None:
    assert sm90.rejects(Problem.of(meta(64, 64, dtype=dtype), meta(64, 64, dtype=dtype)), device) is None


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 1), (10, 0), (12, 0)])
def test_other_gpus_are_rejected_by_name_and_capability(capability: tuple[int, int]) -> None:
    device = replace(H200, name="Some GPU", capability=capability)
    reason = sm90.rejects(Problem.of(meta(64, 64), meta(64, 64)), device)
    assert reason is not None
    for part in ("9.0", "Some GPU", "{}.{}".format(*capability)):
        assert part in reason


@pytest.mark.parametrize("dtype", [d for d in OUT_DTYPES if d not in MULTIPLIED], ids=str)
def test_other_types_are_rejected_by_name(dtype: torch.dtype) -> None:
    reason = sm90.rejects(Problem.of(meta(64, 64, dtype=dtype), meta(64, 64, dtype=dtype)), H200)
    assert reason is not None
    assert reason.endswith(f"not {str(dtype).removeprefix('torch.')}")


@pytest.mark.parametrize(
    ("a", "b"), [((3, 0), (0, 5)), ((0, 3), (3, 5)), ((3, 4), (4, 0)), ((0, 3, 4), (0, 4, 5)), ((0,), (0,))], ids=str
)
def test_a_product_without_products_is_rejected(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert sm90.rejects(Problem.of(meta(*a), meta(*b)), H200) == "there is nothing to multiply"


def test_three_batch_dimensions_are_walked_and_four_are_not() -> None:
    three = Problem.of(meta(3, 1, 64, 64), meta(2, 1, 4, 64, 64))
    assert three.batch == (2, 3, 4)
    assert sm90.rejects(three, H200) is None
    four = Problem.of(meta(2, 1, 4, 1, 64, 64), meta(3, 1, 5, 64, 64))
    assert four.batch == (2, 3, 4, 5)
    reason = sm90.rejects(four, H200)
    assert reason is not None
    assert "3 batch dimensions" in reason
    assert reason.endswith("has 4")
    assert choose(four, H200).name.startswith("simt")
    # Dimensions that one stride can walk count as one.
    assert sm90.rejects(Problem.of(meta(2, 3, 4, 5, 64, 64), meta(2, 3, 4, 5, 64, 64)), H200) is None


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
    reason = sm90.rejects(problem, H200)
    assert reason is not None
    assert "32 bits" in reason
    assert choose(problem, H200).name.startswith("simt")


@pytest.mark.parametrize(
    ("a", "b"),
    [((1, 2**31 - 1), (2**31 - 1, 1)), ((2**26, 64), (64, 64)), ((2**19, 64, 8), (2**19, 8, 64))],
    ids=str,
)
def test_indices_of_the_largest_products_fit_in_32_bits(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    problem = Problem.of(meta(*a), meta(*b))
    assert sm90.rejects(problem, H200) is None
    for candidate in sm90.candidates(problem, H200):
        plan = candidate.plan()
        p = Parameters.of(plan.product)
        step = plan.product.grid[0] // plan.product.cluster
        assert p.tiles_m * p.tiles_n * p.splits * p.batches + step < 2**31  # the index, one step past the last
        c = constants(plan.product.kernel)
        assert p.tiles_m * c["cluster"] * c["tile_m"] < 2**31
        assert p.tiles_n * c["tile_n"] < 2**31
        assert (p.k_steps * p.splits + p.longer_splits) * 64 - 1 < 2**31


def strided(shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> torch.Tensor:
    return meta(1).as_strided(tuple(shape), tuple(strides), offset)


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (0, 0), (32, 0)])
def test_operands_that_repeat_their_rows_or_columns_are_rejected(strides: tuple[int, int]) -> None:
    for problem in (
        Problem.of(strided((64, 32), strides), meta(32, 64)),
        Problem.of(meta(64, 64), strided((64, 32), strides)),
    ):
        reason = sm90.rejects(problem, H200)
        assert reason is not None
        assert "repeats" in reason
        assert choose(problem, H200).name.startswith("simt")
    # Those with one row or column do not, nor do batches that share a matrix.
    for problem in (
        Problem.of(strided((1, 32), (0, 1)), meta(32, 64)),
        Problem.of(strided((64, 1), (1, 0)), meta(1, 64)),
        Problem.of(meta(64, 32).expand(3, 64, 32), meta(3, 32, 64)),
    ):
        assert sm90.rejects(problem, H200) is None


# What is chosen.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_16_bit_floats_get_the_tensor_cores_on_hopper_and_nowhere_else(gpu: str, dtype: torch.dtype) -> None:
    for (a, b), layout in itertools.product(SHAPES, LAYOUTS):
        problem = Problem.of(*(laid_out(*s, layout=x, dtype=dtype) for s, x in zip((a, b), layout, strict=True)))
        plan = choose(problem, KNOWN_GPUS[gpu])
        assert plan.product.kernel.entry == ("sm90" if gpu in ("h200", "h100") else "simt")
        assert plan.name.startswith(plan.product.kernel.entry)


@pytest.mark.parametrize("dtype", [d for d in OUT_DTYPES if d not in MULTIPLIED], ids=str)
def test_other_types_get_other_kernels_on_hopper(dtype: torch.dtype) -> None:
    for a, b in SHAPES:
        plan = choose(Problem.of(meta(*a, dtype=dtype), meta(*b, dtype=dtype)), H200)
        assert entries(plan) == ["simt"]


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_problem_has_a_candidate(device: Device) -> None:
    sizes = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 128, 300)
    for m, n, layout in itertools.product(sizes, sizes, LAYOUTS):
        for k in (8, 641):
            problem = Problem.of(laid_out(m, k, layout=layout[0]), laid_out(k, n, layout=layout[1]))
            assert next(iter(sm90.candidates(problem, device)), None) is not None, (problem, layout)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_candidate_is_a_legal_launch(device: Device) -> None:
    for problem in problems():
        plans = [(candidate, candidate.plan()) for candidate in sm90.candidates(problem, device)]
        assert plans, problem
        for candidate, plan in plans:
            assert (plan.name, plan.cycles) == (candidate.name, candidate.cycles)
            assert math.isfinite(plan.cycles)
            assert plan.cycles > 0
            assert (plan.problem, plan.device, plan.rejections) == (problem, device, ())
            product, c = plan.product, constants(plan.product.kernel)
            assert c["stages"] >= 2
            assert c["shared_bytes"] == product.kernel.shared_bytes <= device.shared_bytes_per_block
            assert product.cluster == c["cluster"]
            assert product.cluster <= product.grid[0] <= device.sm_count
            assert product.grid[0] % product.cluster == 0
            assert product.threads == c["threads"]
            assert product.threads in (256, 384, 512)
            assert (c["tile_m"], c["tile_n"]) in sm90.TILES
            assert 1 <= plan.splits <= math.ceil(problem.k / 64)
            registers = 128 * (c["producer_registers"] + (product.threads // 128 - 1) * c["consumer_registers"])
            assert registers <= device.registers_per_sm
            for stage in plan.stages:
                assert stage.grid[1:] == (1, 1)
                assert 1 <= stage.grid[0] <= MOST_THREADS_IN_X
                assert stage.threads % 32 == 0
                assert stage.awaits_predecessor
                assert constants(stage.kernel)["parameter_bytes"] == len(stage.arguments)
                assert len(stage.arguments) <= 4096
            assert [stage.cluster for stage in plan.stages if stage is not product] == [1] * (len(plan.stages) - 1)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_configuration_is_a_candidate_or_has_a_reason_not_to_be(device: Device) -> None:
    excluded_any = False
    for problem in problems():
        configurations = [f"sm90 {c}" for c in sm90.configurations(problem, device)]
        candidates = [candidate.name for candidate in sm90.candidates(problem, device)]
        exclusions = {each.candidate: each.reason for each in sm90.exclusions(problem, device)}
        assert len(configurations) == len(set(configurations))
        assert sorted(configurations) == sorted([*candidates, *exclusions])
        assert all(exclusions.values())
        excluded_any |= bool(exclusions)
        for c in sm90.configurations(problem, device):
            reason = sm90.unsuited(problem, device, c)  # why it cannot be; others would only waste
            assert reason is None or exclusions[f"sm90 {c}"] == reason
    assert excluded_any


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_the_cheapest_candidate_wins_and_all_others_are_listed(device: Device) -> None:
    for problem in problems(["nn", "tt"]):
        plan = choose(problem, device)
        candidates = {candidate.name: candidate for candidate in sm90.candidates(problem, device)}
        assert plan.cycles == min(candidate.cycles for candidate in candidates.values())
        assert replace(plan, rejections=()) == candidates[plan.name].plan()
        names = [rejection.candidate for rejection in plan.rejections]
        assert len(names) == len(set(names))
        exclusions = {each.candidate for each in sm90.exclusions(problem, device)}
        others = {family.name for family in FAMILIES} - {sm90.FAMILY.name}
        assert simt.FAMILY.name in others
        assert set(names) == others | exclusions | (candidates.keys() - {plan.name})
        assert all(rejection.reason for rejection in plan.rejections)


def test_a_plan_names_each_other_family_on_other_gpus_too() -> None:
    plan = choose(Problem.of(meta(64, 64), meta(64, 64)), KNOWN_GPUS["a100"])
    assert "sm90" in {rejection.candidate for rejection in plan.rejections}
    assert {family.name for family in FAMILIES} == {"sm90", "dot", "thin", "exact", "simt"}


def test_unsuited_says_why() -> None:
    rows, columns = Problem.of(meta(64, 128), meta(128, 512)), Problem.of(meta(64, 128), meta(512, 128).T)
    too_narrow = sm90.Configuration(64, 8)
    reason = sm90.unsuited(rows, H200, too_narrow)
    assert reason is not None
    assert "8 columns" in reason
    assert sm90.unsuited(columns, H200, too_narrow) is None
    reason = sm90.unsuited(columns, H200, replace(too_narrow, cluster=2))
    assert reason is not None
    assert "2 blocks" in reason
    reason = sm90.unsuited(rows, H200, sm90.Configuration(64, 128, splits=3))
    assert reason is not None
    assert "3 parts" in reason
    assert sm90.unsuited(rows, H200, sm90.Configuration(64, 128, splits=2)) is None
    tall = sm90.Configuration(192, 128)
    assert sm90.unsuited(columns, H200, tall) is None
    odd = meta(64, 513, dtype=torch.float32)[:, :512]
    others = {
        "float32 operands": Problem.of(*(meta(*shape, dtype=torch.float32) for shape in ((64, 128), (128, 512)))),
        "a residual": Problem.of(meta(64, 128), meta(128, 512), epilogue=Epilogue(residual=meta(64, 512))),
        "not aligned": Problem.of(meta(64, 128), meta(128, 512), out_dtype=torch.float32, out=odd),
    }
    for word, problem in others.items():
        reason = sm90.unsuited(problem, H200, tall)
        assert reason is not None
        assert "192 rows" in reason
        assert word in reason
    tiny = replace(H200, shared_bytes_per_block=48 * 1024)
    reason = sm90.unsuited(rows, tiny, sm90.Configuration(128, 256))
    assert reason is not None
    assert str(48 * 1024) in reason


# The shapes that decide how the work is cut.


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((4096, 4096, 1040), (192, 176)),  # 132 tiles: one for each SM
        ((16, 1096, 2048, 1096), (192, 128)),  # less of the last row is empty than with 128
        ((4096, 4096, 4096), (128, 256)),
    ],
)
def test_tiles_leave_few_sms_idle_and_few_rows_empty(shape: tuple[int, ...], tile: tuple[int, int]) -> None:
    *batch, m, k, n = shape
    c = constants(choose(Problem.of(meta(*batch, m, k), meta(*batch, k, n)), H200).product.kernel)
    assert (c["tile_m"], c["tile_n"]) == tile


@pytest.mark.parametrize("layout", ["n", "t"])
@pytest.mark.parametrize("tile", sm90.TILES, ids=str)
def test_wide_tiles_load_lines_of_b_in_full_width(tile: tuple[int, int], layout: str) -> None:
    problem = Problem.of(meta(4096, 256), laid_out(256, 4096, layout=layout))
    if sm90.unsuited(problem, H200, sm90.Configuration(*tile)) is None:
        loaded = sm90.plan(problem, H200, sm90.Configuration(*tile)).product.tensor_maps[1]
        panel = next(width for width in (64, 32, 16, 8) if tile[1] % width == 0)
        assert loaded.line_bytes == (128 if layout == "t" or tile[1] > 128 else 2 * panel)


@pytest.mark.parametrize("layout", ["n", "t"])
@pytest.mark.parametrize("rows", [*range(1, 129, 7), 4, 16, 32, 33, 63, 65, 96, 126, 128])
def test_few_rows_waste_less_than_half_of_their_tiles_and_copy_nothing(rows: int, layout: str) -> None:
    plan = choose(Problem.of(meta(rows, 8192), laid_out(8192, 8192, layout=layout)), H200)
    c = constants(plan.product.kernel)
    extent = c["tile_n"] if is_swapped(plan) else c["tile_m"]
    assert math.ceil(rows / extent) * extent < 2 * max(rows, 8)
    assert "realign" not in entries(plan)
    if rows <= 64:
        assert is_swapped(plan)
        assert c["tile_n"] >= rows
    assert plan.product.grid[0] * 8 >= H200.sm_count * 7  # most of the SMs read


def test_a_long_k_is_split_and_reduced() -> None:
    plan = choose(Problem.of(meta(256, 524288), meta(524288, 256)), H200)
    assert entries(plan) == ["sm90", "reduce"]
    assert plan.splits > 1
    assert f"split {plan.splits}" in plan.name
    assert plan.workspace_bytes == plan.splits * 256 * 256 * 4
    p = Parameters.of(plan.product)
    assert (p.splits, p.k_steps, p.longer_splits) == (plan.splits, *divmod(524288 // 64, plan.splits))
    assert p.tiles_m * p.tiles_n * p.splits * plan.product.cluster >= 0.9 * H200.sm_count
    assert constants(plan.product.kernel)["Output"] == "float"
    assert constants(plan.stages[1].kernel)["Output"] == "tilesmith::bfloat16"


def test_a_large_square_is_one_launch_of_the_largest_tile_in_clusters() -> None:
    plan = choose(Problem.of(meta(4096, 4096), meta(4096, 4096)), H200)
    assert entries(plan) == ["sm90"]
    assert plan.name == "sm90 128x256 cluster 2"
    assert (plan.splits, plan.workspace_bytes) == (1, 0)
    assert (plan.product.grid, plan.product.threads, plan.product.cluster) == ((132, 1, 1), 384, 2)


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
    for candidate in sm90.candidates(problem, H200):
        plan = candidate.plan()
        assert entries(plan).count("realign") == (1 if copied else 0)
        if copied:
            assert entries(plan)[0] == "realign"
            sources = [each.buffer for each in plan.stages[0].addresses if each.buffer != "workspace"]
            assert sources == (copied[::-1] if is_swapped(plan) else copied)
            assert constants(plan.stages[0].kernel)["copies"] == len(copied)
        order = ["b", "a"] if is_swapped(plan) else ["a", "b"]
        expected = ["workspace" if each in copied else each for each in order]
        assert [each.buffer for each in plan.product.tensor_maps[:2]] == expected


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
        (strided((64, 32), (2**39, 1)), True, False),  # a stride of 2^40 bytes is too long for the copy engine
    ],
)
def test_operands_are_read_where_they_lie_if_the_copy_engine_can(
    matrix: torch.Tensor, is_copied: bool, mn_major: bool
) -> None:
    batch = matrix.shape[:-2]
    k = matrix.shape[-1]
    c = sm90.Configuration(64, 64)
    as_a = planned(Problem.of(matrix, meta(*batch, k, 64)), c)
    if matrix.shape[-2] == 1:
        c = sm90.Configuration(64, 8)
    assert as_a.product.tensor_maps[0].buffer == ("workspace" if is_copied else "a")
    assert constants(as_a.product.kernel)["a_mn_major"] is mn_major
    as_b = planned(Problem.of(meta(*batch, 64, k), matrix.mT), c)
    assert as_b.product.tensor_maps[1].buffer == ("workspace" if is_copied else "b")
    assert constants(as_b.product.kernel)["b_mn_major"] is mn_major


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
    plan = planned(problem, sm90.Configuration(64, 32 if n > 1 else 8))
    c = constants(plan.product.kernel)
    store = Store.BOXES if by_tma else Store.LINES
    assert (c["out_store"], c["out_along_m"], c["out_is_partial"]) == (store, along_m, is_partial)
    assert len(plan.product.tensor_maps) == (3 if by_tma else 2)
    assert [each.buffer for each in plan.product.addresses] == ([] if by_tma else ["out"])
    assert entries(plan) == (["sm90", "reduce"] if is_partial else ["sm90"])
    assert plan.splits == 1
    # The transposed product stores the transposed output.
    swapped = constants(planned(problem, sm90.Configuration(64, 32 if m > 1 else 8, swap=True)).product.kernel)
    if m > 1 and n > 1 and not is_partial:
        assert (swapped["out_store"], swapped["out_along_m"]) == (store, not along_m)


def test_an_out_without_contiguous_lines_is_reduced_from_one_part() -> None:
    out = meta(512, 512)[::2, ::2]
    plan = choose(Problem.of(meta(256, 256), meta(256, 256), out=out), H200)
    assert entries(plan) == ["sm90", "reduce"]
    assert plan.splits == 1
    reduce = Reduce.of(plan.stages[1])
    assert (reduce.splits, reduce.line_stride, reduce.element_stride) == (1, 1024, 2)
    assert plan.workspace_bytes == 256 * 256 * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_float32_result_is_stored_as_such(dtype: torch.dtype) -> None:
    a, b = meta(4096, 4096, dtype=dtype), meta(4096, 4096, dtype=dtype)
    narrow, wide = (planned(Problem.of(a, b, out_dtype=d), sm90.Configuration(128, 256)) for d in (None, torch.float32))
    assert constants(wide.product.kernel)["Output"] == "float"
    assert constants(narrow.product.kernel)["Output"] == f"tilesmith::{str(dtype).removeprefix('torch.')}"
    assert (wide.product.tensor_maps[2].dtype, narrow.product.tensor_maps[2].dtype) == (torch.float32, dtype)
    assert wide.product.tensor_maps[2].strides == (4096 * 4,)
    assert narrow.product.tensor_maps[2].strides == (4096 * 2,)
    assert wide.product.tensor_maps[:2] == narrow.product.tensor_maps[:2]
    assert (constants(narrow.product.kernel)["store_waits"], constants(wide.product.kernel)["store_waits"]) == (
        True,
        False,
    )
    for kernel in (narrow.product.kernel, wide.product.kernel):
        assert kernel.wgmma is not None
        assert (kernel.wgmma.n, kernel.wgmma.dtype) == (256, dtype)


def test_the_instruction_knows_how_the_operands_lie() -> None:
    for layout in LAYOUTS:
        a, b = laid_out(256, 256, layout=layout[0]), laid_out(256, 256, layout=layout[1])
        kernel = planned(Problem.of(a, b), sm90.Configuration(64, 128)).product.kernel
        assert kernel.wgmma is not None
        assert (kernel.wgmma.a_mn_major, kernel.wgmma.b_mn_major) == (layout[0] == "t", layout[1] == "n")
        swapped = planned(Problem.of(a, b), sm90.Configuration(64, 128, swap=True)).product.kernel
        assert swapped.wgmma is not None
        assert (swapped.wgmma.a_mn_major, swapped.wgmma.b_mn_major) == (layout[1] == "n", layout[0] == "t")


def test_sizes_do_not_make_another_kernel_but_where_no_block_has_a_second_tile() -> None:
    c = sm90.Configuration(128, 256, cluster=2)
    few, many = (
        {planned(Problem.of(meta(m, k), meta(k, n)), c).product.kernel for m, k, n in sizes}
        for sizes in ([(300, 1000, 2000), (8448, 128, 512)], [(4096, 4096, 4096), (8192, 128, 1000), (8448, 128, 520)])
    )
    assert (len(few), len(many)) == (1, 1)
    assert {constants(kernel)["store_waits"] for kernel in few} == {False}
    assert {constants(kernel)["store_waits"] for kernel in many} == {True}


def test_equal_problems_get_equal_plans() -> None:
    one, other = (choose(Problem.of(meta(640, 330), meta(330, 480)), H200) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != choose(Problem.of(meta(640, 330), meta(480, 330).T), H200)


# What the kernels are told.


class Parameters(NamedTuple):
    """struct Parameters of kernels/sm90/types.cuh, after its three tensor maps."""

    address: int
    line_stride: int
    lines: int
    length: int
    out_batch_stride: tuple[int, ...]
    tiles_m: int
    tiles_n: int
    splits: int
    batches: int
    k_steps: int  # of a split
    longer_splits: int  # the first ones, which have one step more
    band: int
    panel: int
    batch_size: tuple[int, ...]
    a_moves: tuple[int, ...]
    b_moves: tuple[int, ...]
    m: int
    depth: int
    plane_depth: int

    @classmethod
    def of(cls, stage: Stage) -> "Parameters":
        assert stage.kernel.entry == "sm90"
        f = struct.unpack_from("<2q2i3q20i", stage.arguments, 384)
        return cls._make([*f[:4], f[4:7], *f[7:15], f[15:18], f[18:21], f[21:24], *f[24:27]])


class Copy(NamedTuple):
    """struct Copy of realign.cu."""

    line_stride: int
    element_stride: int
    batch_stride: tuple[int, ...]
    pitch: int
    lines: int
    tasks: int
    length: int
    segments: int
    batch_size: tuple[int, ...]

    @classmethod
    def all_of(cls, stage: Stage) -> "list[Copy]":
        assert stage.kernel.entry == "realign"
        copies = []
        for f in struct.iter_unpack("<16x6q7I4x", stage.arguments):
            copies.append(cls._make([*f[:2], f[2:5], *f[5:10], f[10:13]]))
        return copies


class Reduce(NamedTuple):
    """struct Parameters of reduce.cu, after its two addresses."""

    line_stride: int
    element_stride: int
    batch_stride: tuple[int, ...]
    pitch: int
    vectors: int
    lines: int
    length: int
    splits: int
    batch_size: tuple[int, ...]

    @classmethod
    def of(cls, stage: Stage) -> "Reduce":
        assert stage.kernel.entry == "reduce"
        f = struct.unpack("<16x8q5i4x", stage.arguments)
        return cls._make([*f[:2], f[2:5], *f[5:10], f[10:13]])


def test_the_product_is_told_its_tiles_and_where_its_lines_go() -> None:
    problem = Problem.of(meta(300, 1000), meta(1000, 500), out=meta(300, 510)[:, :500])
    plan = planned(problem, sm90.Configuration(128, 96, cluster=2))
    p = Parameters.of(plan.product)
    assert p.band >= 1
    assert p._replace(band=0) == Parameters(
        address=0,
        line_stride=510,
        lines=300,
        length=500,
        out_batch_stride=(0, 0, 0),
        tiles_m=2,  # of 256 rows
        tiles_n=6,
        splits=1,
        batches=1,
        k_steps=16,
        longer_splits=0,
        band=0,
        panel=6,
        batch_size=(0, 0, 0),
        a_moves=(0, 0, 0),
        b_moves=(0, 0, 0),
        m=300,
        depth=1000,
        plane_depth=0,
    )
    assert plan.product.grid == (2 * 2 * 6, 1, 1)
    assert [(each.position, each.buffer, each.offset) for each in plan.product.addresses] == [(384, "out", 0)]
    assert [each.position for each in plan.product.tensor_maps] == [0, 128]


def test_an_out_that_is_stored_along_m_gives_its_columns_as_lines() -> None:
    problem = Problem.of(meta(300, 1000), meta(1000, 500), out=meta(500, 307).T[:300])
    p = Parameters.of(planned(problem, sm90.Configuration(64, 96)).product)
    assert (p.line_stride, p.lines, p.length) == (307, 500, 300)
    p = Parameters.of(planned(problem, sm90.Configuration(64, 96, swap=True)).product)
    assert (p.line_stride, p.lines, p.length) == (307, 500, 300)
    assert (p.tiles_m, p.tiles_n) == (8, 4)


def test_a_batch_is_walked_fastest_first_and_shared_operands_stay() -> None:
    problem = Problem.of(meta(3, 1, 64, 128), meta(2, 1, 4, 128, 72))
    plan = planned(problem, sm90.Configuration(64, 96))
    p = Parameters.of(plan.product)
    assert p.batch_size == (4, 3, 2)
    assert (p.a_moves, p.b_moves) == ((0, 1, 0), (1, 0, 1))
    assert p.out_batch_stride == (64 * 72, 4 * 64 * 72, 12 * 64 * 72)
    assert (p.batches, p.k_steps) == (24, 2)
    c = constants(plan.product.kernel)
    assert (c["batch_rank"], c["out_batch_rank"]) == (3, 3)
    a_map, b_map, out_map = plan.product.tensor_maps
    assert (a_map.sizes, a_map.strides[0], a_map.strides[2]) == ((128, 64, 1, 3, 1), 128 * 2, 64 * 128 * 2)
    assert b_map.sizes == (72, 128, 4, 1, 2)
    assert (b_map.strides[0], b_map.strides[1], b_map.strides[3]) == (72 * 2, 128 * 72 * 2, 4 * 128 * 72 * 2)
    assert out_map.sizes == (72, 64, 4, 3, 2)
    assert out_map.strides == tuple(2 * s for s in (72, 64 * 72, 4 * 64 * 72, 12 * 64 * 72))
    assert (a_map.box, b_map.box, out_map.box) == ((64, 64, 1, 1, 1), (32, 64, 1, 1, 1), (32, 64, 1, 1, 1))


def test_partial_products_of_a_batch_are_one_batch_of_matrices() -> None:
    plan = planned(Problem.of(meta(3, 1, 64, 128), meta(2, 1, 4, 128, 70)), sm90.Configuration(64, 96, splits=2))
    c = constants(plan.product.kernel)
    assert (c["batch_rank"], c["out_batch_rank"], c["Output"]) == (3, 1, "float")
    p = Parameters.of(plan.product)
    assert (p.splits, p.batches, p.out_batch_stride) == (2, 24, (0, 0, 0))
    out_map = plan.product.tensor_maps[2]
    assert (out_map.buffer, out_map.dtype) == ("workspace", torch.float32)
    assert (out_map.sizes, out_map.strides) == ((70, 64, 48), (72 * 4, 64 * 72 * 4))
    reduce = Reduce.of(plan.stages[-1])
    assert reduce == Reduce(
        line_stride=70,
        element_stride=1,
        batch_stride=(64 * 70, 4 * 64 * 70, 12 * 64 * 70),
        pitch=72,
        vectors=24 * 64 * 18,
        lines=64,
        length=70,
        splits=2,
        batch_size=(4, 3, 2),
    )
    assert plan.stages[-1].grid == (24 * 64 * 18 // 256, 1, 1)
    offsets = [(each.position, each.buffer, each.offset) for each in plan.stages[-1].addresses]
    assert offsets == [(0, "workspace", out_map.offset), (8, "out", 0)]


@pytest.mark.parametrize(("splits", "turns"), [(2, 1), (3, 2), (4, 2), (5, 4), (8, 4), (9, 8), (128, 8)])
def test_many_splits_are_added_by_several_warps(splits: int, turns: int) -> None:
    plan = planned(Problem.of(meta(64, 16384), meta(16384, 64)), sm90.Configuration(64, 64, splits=splits))
    assert constants(plan.stages[-1].kernel)["turns"] == turns
    assert plan.stages[-1].grid == (64 * 64 // 4 // (256 // turns), 1, 1)


@pytest.mark.parametrize(
    ("out", "vector"),
    [
        (strided((64, 32), (32, 1)), 4),
        (strided((64, 32), (34, 1)), 1),
        (strided((64, 32), (36, 1)), 4),
        (strided((64, 32), (36, 1), 2), 1),
        (strided((64, 32), (36, 1), 4), 4),
        (strided((64, 30), (36, 1)), 1),
        (strided((64, 32), (64, 2)), 1),
        (strided((64, 32), (1, 64)), 4),
        (strided((64, 32), (1, 66)), 1),
        (strided((3, 64, 32), (2050, 32, 1)), 1),
        (strided((3, 64, 32), (2052, 32, 1)), 4),
        (strided((64, 1), (4, 1)), 1),
    ],
)
def test_the_reduction_stores_vectors_where_out_allows(out: torch.Tensor, vector: int) -> None:
    *batch, m, n = out.shape
    problem = Problem.of(meta(*batch, m, 128), meta(*batch, 128, n), out=out)
    plan = planned(problem, sm90.Configuration(64, 32 if n > 1 else 8, splits=2))
    assert constants(plan.stages[-1].kernel)["out_vector"] == vector


def test_the_realignment_is_told_where_lines_lie_and_where_they_go() -> None:
    a, b = meta(2, 1, 300, 75)[..., :70], meta(3, 70, 1501)
    problem = Problem.of(a, b)
    assert problem.batch == (2, 3)
    plan = planned(problem, sm90.Configuration(64, 96))
    assert entries(plan) == ["realign", "sm90"]
    assert Copy.all_of(plan.stages[0]) == [
        Copy(
            line_stride=75,
            element_stride=1,
            batch_stride=(22500, 0, 0),
            pitch=72,
            lines=300,
            tasks=600,
            length=70,
            segments=1,
            batch_size=(2, 1, 1),
        ),
        Copy(
            line_stride=1501,
            element_stride=1,
            batch_stride=(70 * 1501, 0, 0),
            pitch=1536,
            lines=70,
            tasks=3 * 70 * 6,
            length=1501,
            segments=6,
            batch_size=(3, 1, 1),
        ),
    ]
    b_offset = 2 * 300 * 72 * 2 + 255 & -256
    offsets = [(each.position, each.buffer, each.offset) for each in plan.stages[0].addresses]
    assert offsets == [(0, "a", 0), (8, "workspace", 0), (96, "b", 0), (104, "workspace", b_offset)]
    a_map, b_map = plan.product.tensor_maps
    assert (a_map.offset, a_map.sizes, a_map.strides) == (0, (70, 300, 1, 2), (144, 32, 300 * 144))
    assert (b_map.offset, b_map.sizes, b_map.strides) == (b_offset, (1501, 70, 3, 1), (3072, 70 * 3072, 32))
    assert plan.workspace_bytes == b_offset + 3 * 70 * 3072 + 255 & -256


def test_argument_blocks_are_zero_where_addresses_and_tensor_maps_go() -> None:
    seen = set()
    for problem in problems(["nt"]):
        for candidate in sm90.candidates(problem, H200):
            for stage in candidate.plan().stages:
                seen.add(stage.kernel.entry)
                for each in stage.addresses:
                    assert stage.arguments[each.position : each.position + 8] == bytes(8)
                    assert each.position % 8 == 0
                for tensor_map in stage.tensor_maps:
                    assert stage.arguments[tensor_map.position : tensor_map.position + 128] == bytes(128)
                    assert tensor_map.position % 64 == 0
    assert seen == {"realign", "sm90", "reduce"}


def offset_checks(struct_name: str, offsets: dict[str, int]) -> str:
    """Makes a translation unit assert where a struct has its fields."""
    name = f"tilesmith::{struct_name}"
    return "\n".join(
        f'static_assert(__INTADDR__(&(({name}*)0)->{field}) == {at}, "{field}");' for field, at in offsets.items()
    )


@pytest.mark.parametrize(
    ("entry", "struct_name", "offsets"),
    [
        (
            "sm90",
            "Parameters",
            {
                "a": 0,
                "b": 128,
                "out": 256,
                "out_lines.first": 384,
                "out_lines.stride": 392,
                "out_lines.count": 400,
                "out_lines.length": 404,
                "out_batch_stride": 408,
                "schedule.tiles_m": 432,
                "schedule.tiles_n": 436,
                "schedule.splits": 440,
                "schedule.batches": 444,
                "schedule.k_steps": 448,
                "schedule.longer_splits": 452,
                "schedule.band": 456,
                "schedule.panel": 460,
                "batch_size": 464,
                "a_moves": 476,
                "b_moves": 488,
                "m": 500,
                "depth": 504,
                "plane_depth": 508,
                "a_scales": 512,
                "b_scales": 536,
                "a_censuses": 560,
                "b_censuses": 568,
                "verdict": 576,
                "a_census_count": 584,
                "b_census_count": 588,
                "split_exponents": 592,
                "split_pitch": 600,
            },
        ),
        (
            "realign",
            "Copy",
            {
                "from": 0,
                "to": 8,
                "line_stride": 16,
                "element_stride": 24,
                "batch_stride": 32,
                "pitch": 56,
                "lines": 64,
                "tasks": 68,
                "length": 72,
                "segments": 76,
                "batch_size": 80,
            },
        ),
        (
            "reduce",
            "Parameters",
            {
                "partial": 0,
                "out": 8,
                "line_stride": 16,
                "element_stride": 24,
                "batch_stride": 32,
                "pitch": 56,
                "vectors": 64,
                "lines": 72,
                "length": 80,
                "splits": 84,
                "batch_size": 88,
            },
        ),
    ],
)
def test_the_kernels_have_their_fields_where_the_arguments_are(
    entry: str, struct_name: str, offsets: dict[str, int]
) -> None:
    """The offsets that the structs of this file decode are those of the CUDA sources."""
    problem = Problem.of(meta(65, 129), meta(129, 8))
    plan = planned(problem, sm90.Configuration(64, 16, splits=2))
    kernel = next(stage.kernel for stage in plan.stages if stage.kernel.entry == entry)
    compiler.compile(source.render(kernel) + offset_checks(struct_name, offsets), "sm_90a")


# The workspace.


@dataclass(frozen=True)
class Region:
    """Bytes of the workspace."""

    first: int
    end: int

    @classmethod
    def of_map(cls, tensor_map: TensorMap) -> "Region":
        strides = (tensor_map.dtype.itemsize, *tensor_map.strides)
        reach = sum((size - 1) * stride for size, stride in zip(tensor_map.sizes, strides, strict=True))
        return cls(tensor_map.offset, tensor_map.offset + reach + tensor_map.dtype.itemsize)

    def holds(self, other: "Region") -> bool:
        return self.first <= other.first and other.end <= self.end


def written_by_realign(stage: Stage) -> list[Region]:
    targets = [each.offset for each in stage.addresses if each.buffer == "workspace"]
    regions = []
    for copy, offset in zip(Copy.all_of(stage), targets, strict=True):
        lines = copy.lines * math.prod(copy.batch_size)
        assert copy.tasks == lines * copy.segments
        assert copy.segments * 256 >= copy.length > (copy.segments - 1) * 256
        assert copy.pitch % 8 == 0
        last = math.ceil(copy.length / 8) * 8  # the kernel writes whole vectors
        assert copy.pitch >= last
        regions.append(Region(offset, offset + ((lines - 1) * copy.pitch + last) * 2))
    return regions


def test_copies_and_partial_products_have_their_own_parts_of_the_workspace() -> None:
    seen = set()
    for problem in problems():
        for candidate in sm90.candidates(problem, H200):
            plan = candidate.plan()
            if plan.workspace_bytes == 0:
                assert entries(plan) == ["sm90"]
                assert {each.buffer for each in plan.product.tensor_maps} <= {"a", "b", "out"}
                continue
            a_map, b_map, *out_maps = plan.product.tensor_maps
            regions = written_by_realign(plan.stages[0]) if entries(plan)[0] == "realign" else []
            copies = [each for each in (a_map, b_map) if each.buffer == "workspace"]
            for region, each in zip(regions, copies, strict=True):
                assert region.holds(Region.of_map(each))
            if entries(plan)[-1] == "reduce":
                (out_map,) = out_maps
                reduce = Reduce.of(plan.stages[-1])
                read = Region(out_map.offset, out_map.offset + reduce.splits * reduce.vectors * 16)
                assert read.holds(Region.of_map(out_map))
                assert plan.stages[-1].addresses[0].offset == out_map.offset
                at_once = plan.stages[-1].threads // constants(plan.stages[-1].kernel)["turns"]
                assert plan.stages[-1].grid[0] * at_once >= reduce.vectors
                regions.append(read)
            regions.sort(key=lambda region: region.first)
            for before, after in itertools.pairwise(regions):
                assert before.end <= after.first
            assert all(region.first % 256 == 0 for region in regions)
            assert regions[0].first == 0
            assert regions[-1].end <= plan.workspace_bytes < regions[-1].end + 256
            seen.add((len(regions), tuple(entries(plan))))
    assert seen == {
        (1, ("realign", "sm90")),
        (2, ("realign", "sm90")),
        (1, ("sm90", "reduce")),
        (2, ("realign", "sm90", "reduce")),
        (3, ("realign", "sm90", "reduce")),
    }


def test_tensor_maps_obey_the_copy_engine() -> None:
    for problem in problems():
        for candidate in sm90.candidates(problem, H200):
            plan = candidate.plan()
            for each in plan.product.tensor_maps:
                assert 2 <= len(each.sizes) == len(each.box) == len(each.strides) + 1 <= 5
                assert each.offset % 16 == 0
                assert all(1 <= size <= 2**32 for size in each.sizes)
                assert all(stride % 16 == 0 and 0 < stride < 2**40 for stride in each.strides)
                assert all(1 <= size <= 256 for size in each.box)
                assert each.box[0] * each.dtype.itemsize == each.line_bytes
                assert each.line_bytes in (16, 32, 64, 128)
            a_map, b_map = plan.product.tensor_maps[:2]
            c = constants(plan.product.kernel)
            assert a_map.dtype == b_map.dtype == problem.a.dtype
            assert a_map.box[:2] == ((64, 64) if c["a_mn_major"] else (64, c["tile_m"]))
            lines = 64 if c["b_mn_major"] else c["tile_n"]
            assert b_map.box[1] * c["cluster"] == lines
            assert (c["b_extent"] if c["b_mn_major"] else 64) % b_map.box[0] == 0
