"""Explanations: they agree with the plan, whatever the product and the GPU, and a person can read them."""

import dataclasses
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from meta_tensors import meta

import tilesmith
from tilesmith.bench import suites
from tilesmith.bench.suites import Product
from tilesmith.cli import main
from tilesmith.core import device
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import KNOWN_GPUS, Device
from tilesmith.core.plan import Cost, Plan
from tilesmith.core.problem import Problem
from tilesmith.core.roofline import Peak, tensor_rate
from tilesmith.explain import Explanation
from tilesmith.explain.tiles import Axis
from tilesmith.kernels import FAMILIES
from tilesmith.kernels.hopper import family as hopper
from tilesmith.planner import choose, rejections

H200, A100 = KNOWN_GPUS["h200"], KNOWN_GPUS["a100"]
SUITES = ("aligned", "batched", "kernelbench", "llm", "odd", "seeds", "skinny", "small")  # others repeat their products
KINDS: list[tuple[str, Accuracy]] = [("float32", "fp32"), ("float32", "tf32"), ("bfloat16", "fp32")]


def planned(product: Product, dtype: str, accuracy: Accuracy, gpu: Device) -> Plan:
    operands = dataclasses.replace(product, dtype=dtype).operands("meta")
    return choose(Problem.of(*operands, accuracy=accuracy), gpu)


def explained(a: torch.Tensor, b: torch.Tensor, gpu: str = "h200", accuracy: str = "fp32") -> Explanation:
    return tilesmith.explain(a, b, accuracy=accuracy, gpu=gpu)


def explanation_of(plan: Plan) -> Explanation:
    return Explanation.of(plan, rejections(plan))


def one_line(text: str) -> str:
    return " ".join(text.split())


def section(text: str, heading: str) -> list[str]:
    """The lines under a heading, up to the next one."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(heading)) + 1
    end = next((i for i in range(start, len(lines)) if lines[i] and not lines[i].startswith(" ")), len(lines))
    return [line for line in lines[start:end] if line]


def drawn(picture: list[str]) -> tuple[int, int]:
    """The rows and columns of a picture, with those that it says it leaves out."""
    rows = [line for line in picture if "|" in line]
    columns = {line.count("|") - 1 - line.count("| ... |") for line in rows}
    assert len(columns) == 1
    counts = re.findall(r"([\d,]+) (rows|columns)", picture[-1])
    left_out = {name: int(count.replace(",", "")) for count, name in counts}
    assert (" ... " in rows[0]) == ("columns" in left_out)
    assert any(line.strip() == "..." for line in picture) == ("rows" in left_out)
    return len(rows) + left_out.get("rows", 0), columns.pop() + left_out.get("columns", 0)


def assert_agrees(found: Explanation, plan: Plan) -> None:
    problem, text = plan.problem, str(found)
    assert text.startswith(f"{problem}")
    assert f"on {plan.device.name} ({plan.device.arch})" in one_line(text)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.isascii()
    assert not any(line != line.rstrip() for line in text.splitlines())

    assert (found.plan, found.work.flops) == (plan.name, 2 * problem.m * problem.n * problem.k * problem.batches)
    bounds = found.work.bounds
    assert bounds is not None and bounds.compute_us is not None
    assert bounds.least_us == max(bounds.compute_us, bounds.memory_us) > 0
    assert bounds.bound == ("compute" if bounds.compute_us > bounds.memory_us else "memory")

    assert len(found.launches) == len(plan.launches)
    words = one_line("\n".join(section(text, "The plan:")))
    for shown, launch in zip(found.launches, plan.launches, strict=True):
        assert (shown.kernel, shown.grid, shown.threads) == (launch.kernel.entry, launch.grid, launch.kernel.threads)
        grid = " x ".join(f"{size:,}" for size in launch.grid if size != 1) or "1"
        assert f"grid {grid}, {launch.kernel.threads} threads" in words
        assert shown.words.does in words
        if launch.kernel.shared_bytes:
            assert f"{launch.kernel.shared_bytes:,} bytes of shared memory" in words
    assert ("workspace:" in words) == (plan.workspace_bytes > 0)

    tiles, tiling = found.tiles, plan.tiling
    assert tiling is not None
    m, n = (problem.n, problem.m) if tiling.swap_ab else (problem.m, problem.n)
    down, across = math.ceil(m / tiling.rows), math.ceil(n / tiling.columns)
    assert drawn(list(tiles.picture())) == (down, across)
    of_a_tile = tiling.rows // tiling.worker_rows, tiling.columns // tiling.worker_columns
    assert drawn(list(tiles.picture_of_a_tile())) == of_a_tile
    workers = math.prod(of_a_tile) * tiling.worker_sets
    threads = {"warpgroups": 128, "warps": 32}[tiling.workers]
    assert threads * (workers + tiling.loaders) == plan.product.kernel.threads
    assert tiles.tiles == down * across * problem.batches
    assert tiles.filled == pytest.approx(m * n / (down * tiling.rows * across * tiling.columns))

    waves = found.waves
    assert waves.units == tiles.tiles * tiling.parts_of_k + waves.only_fill_clusters
    assert (waves.waves - 1) * waves.units_at_once + waves.in_last_wave == waves.units
    assert 0 < waves.in_last_wave <= waves.units_at_once
    if plan.family.startswith("hopper"):  # their blocks go on to the next tile
        assert plan.product.grid == (min(waves.units, waves.units_at_once), 1, 1)
    else:
        assert math.prod(plan.product.grid) == waves.units

    assert found.estimate.cycles == plan.cycles
    assert math.fsum(part.cycles for part in found.estimate.parts) == pytest.approx(plan.cycles, rel=1e-12)
    assert found.estimate.us is not None
    assert math.fsum(part.us or 0 for part in found.estimate.parts) == pytest.approx(found.estimate.us, rel=1e-12)

    assert {each.candidate for each in found.alternatives} == {each.candidate for each in rejections(plan)}
    compared = [each.cycles for each in found.alternatives if each.cycles is not None]
    assert compared == sorted(compared)
    assert all(each.cycles is None for each in found.alternatives[len(compared) :])
    assert json.loads(json.dumps(dataclasses.asdict(found), allow_nan=False))["plan"] == plan.name


@pytest.mark.parametrize(("dtype", "accuracy"), KINDS, ids=["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("suite", SUITES)
def test_every_product_of_a_suite_is_explained_and_for_every_known_gpu(
    suite: str, dtype: str, accuracy: Accuracy
) -> None:
    """The GPUs take turns."""
    gpus, seen, products = list(KNOWN_GPUS.values()), set(), suites.load(suite)
    turns = min(3, len(products))
    for which, product in enumerate(products):
        for gpu in gpus[which % turns :: turns]:
            plan = planned(product, dtype, accuracy, gpu)
            assert_agrees(explanation_of(plan), plan)
            seen.add(gpu.name)
    assert seen == {gpu.name for gpu in gpus}


@pytest.mark.parametrize("name", KNOWN_GPUS)
def test_every_type_is_explained(name: str) -> None:
    for dtype in (torch.float64, torch.float16, torch.int8, torch.int64):
        text = str(explained(meta(70, 80, dtype=dtype), meta(80, 90, dtype=dtype), name))
        assert text.startswith("70 x 80 x 90 ")
    unknown = explained(meta(70, 80, dtype=torch.int8), meta(80, 90, dtype=torch.int8), name)
    assert unknown.work.bounds is not None and unknown.work.bounds.bound is None
    assert "the peak rate of int8 is not known" in str(unknown)
    assert "times the roofline" not in str(unknown)


@pytest.mark.parametrize(("a", "b"), [((0, 5), (5, 3)), ((4, 0), (0, 3)), ((2, 0, 5), (5, 3)), ((7,), (7,))])
def test_there_may_be_nothing_to_do(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for name in KNOWN_GPUS:
        found = explained(meta(*a), meta(*b), name)
        assert found.work.flops == Problem.of(meta(*a), meta(*b)).flops
        assert "The tiles" in str(found)


def test_planes_are_explained() -> None:
    found = explained(meta(8205, 2949), meta(2949, 5921))
    split, product, wide_split, wide_product = found.launches
    does = "splits both operands into two float16 terms each, scaled, and finds the range statistics of their values"
    assert split.words.does == does
    assert "three products of 2 by 2 float16 terms" in product.words.does
    assert (product.words.terms, product.words.term_products) == ((2, 2), 3)
    assert (
        product.words.stops
        == "stops after its first tiles if the range statistics find values that these terms cannot hold"
    )
    does = "splits both operands into three bfloat16 terms each, which hold float32's whole range"
    assert wide_split.words.does == does
    assert "six products of 3 by 3 bfloat16 terms" in wide_product.words.does
    assert wide_split.words.stops == wide_product.words.stops != product.words.stops
    assert split.words.stops is None
    assert [part.name for part in found.estimate.parts] == ["preparation", "product", "idle launches"]
    assert not found.promises.independent_of_other_rows
    assert "No larger than that of torch's float32 product" in one_line(str(found))
    short = hopper.plan(Problem.of(meta(4096, 256), meta(256, 4096)), H200, hopper.Configuration(128, 128))
    assert explanation_of(short).launches[1].words.term_products == 4  # the least one too


def test_an_operand_that_the_product_splits_itself_is_explained() -> None:
    plan = hopper.plan(Problem.of(meta(4096, 4096), meta(4096, 128)), H200, hopper.Configuration(128, 128, rs=True))
    split, product = explanation_of(plan).launches[:2]
    assert split.words.does.startswith("splits B into two float16 terms, scaled")
    assert split.words.does.endswith("; finds scales for A, which the product splits itself")
    assert "one operand split in registers on the way" in product.words.does
    assert product.words.stops is None


def test_a_packed_operand_is_not_split() -> None:
    plan = choose(Problem.of(meta(4096, 4096), meta(4096, 4096), packed=(False, True)), H200)
    found = explanation_of(plan)
    assert found.launches[0].words.does.startswith("splits A into two float16 terms, ")
    assert "B by rows, packed" in str(found)


def test_operands_of_two_types_have_their_own_planes() -> None:
    mixed = meta(4096, 4096, dtype=torch.float16), meta(4096, 4096)
    split, product = explained(*mixed).launches[:2]
    assert split.words.does.startswith("splits A into one float16 term and B into two float16 terms, ")
    assert (product.words.terms, product.words.term_products) == ((1, 2), 2)


def test_what_follows_a_product_is_explained() -> None:
    a, b, bias, residual = (meta(*s, dtype=torch.bfloat16) for s in ((512, 256), (256, 384), (384,), (512, 384)))
    plain = tilesmith.explain(a, b, gpu="h200")
    found = tilesmith.explain(a, b, bias=bias, residual=residual, gpu="h200")
    assert (plain.epilogue, found.epilogue) == ((), ("a bias", "a residual"))
    assert found.work.read_bytes == plain.work.read_bytes + 2 * (384 + 512 * 384)
    assert "  with a bias, a residual in its kernels" in str(found).splitlines()
    assert tilesmith.explain(a, b, activation="gelu", gpu="h200").epilogue == ("gelu",)
    with pytest.raises(RuntimeError, match="bias must have shape"):
        tilesmith.explain(a, b, bias=residual)
    result = run("64x128x96", "--bias", "--activation", "silu", "--residual", "--gpu", "h200")
    assert "  with a bias, silu, a residual in its kernels" in result.output.splitlines()


def test_an_output_without_contiguous_lines_is_stored_by_a_launch_of_its_own() -> None:
    out = meta(512, 1024, 2, dtype=torch.bfloat16)[..., 0]
    operands = meta(512, 512, dtype=torch.bfloat16), meta(512, 1024, dtype=torch.bfloat16)
    found = explanation_of(hopper.plan(Problem.of(*operands, out=out), H200, hopper.Configuration(128, 128)))
    assert found.launches[-1].words.does == "stores the sums in the bfloat16 output, which has no contiguous lines"
    assert "the output with strides of 2048 and 2" in str(found)


def test_copies_clusters_and_splits_are_explained() -> None:
    problem = Problem.of(meta(300, 1001, dtype=torch.float16), meta(1001, 200, dtype=torch.float16))
    plan = hopper.plan(problem, H200, hopper.Configuration(128, 64, cluster=2, split_k=3))
    found = explanation_of(plan)
    assert_agrees(found, plan)
    assert [launch.kernel for launch in found.launches] == ["realign", "gemm", "split_k_reduce"]
    assert found.launches[0].words.does.startswith("copies A to lines that start at multiples of 16 bytes")
    assert found.launches[2].words.does == "adds the 3 parts of K in their order into the float16 output"
    assert (found.waves.units, found.waves.only_fill_clusters, found.waves.parts_of_k) == (48, 12, 3)
    text = one_line(str(found))
    assert "K is cut into 3 parts" in text
    assert "How K is split depends on all sizes" in text
    assert [part.name for part in found.estimate.parts] == ["preparation", "product", "reduction"]


def test_a_transposed_product_is_drawn_as_it_is_cut() -> None:
    problem = Problem.of(meta(16, 4096, dtype=torch.bfloat16), meta(4096, 4096, dtype=torch.bfloat16))
    found = explanation_of(hopper.plan(problem, H200, hopper.Configuration(64, 16, swap_ab=True)))
    assert (found.tiles.rows, found.tiles.columns) == (Axis(4096, 64), Axis(16, 16))
    assert "the transposed output, 4096 x 16: 64 x 1 tiles of 64 x 16" in str(found)


def test_the_picture_of_an_odd_output() -> None:
    found = explained(meta(300, 100), meta(100, 200), "a100", "ieee")
    tile = found.tiles.rows.step, found.tiles.columns.step
    assert tile == (32, 32)
    assert list(found.tiles.picture()) == [
        "             32     32     32     32     32     32     8",
        "          +------+------+------+------+------+------+------+",
        "       32 |      |      |      |      |      |      | 25%  |",
        "          +------+------+------+------+------+------+------+",
        "       32 |      |      |      |      |      |      | 25%  |",
        "          +------+------+------+------+------+------+------+",
        "      ...",
        "          +------+------+------+------+------+------+------+",
        "       32 |      |      |      |      |      |      | 25%  |",
        "          +------+------+------+------+------+------+------+",
        "       12 | 38%  | 38%  | 38%  | 38%  | 38%  | 38%  |  9%  |",
        "          +------+------+------+------+------+------+------+",
        "          6 rows in the middle are left out",
    ]
    assert found.tiles.partly_filled == 10 + 7 - 1


@pytest.mark.parametrize(
    ("gpu", "dtype", "accuracy", "independent", "sums"),
    [
        ("rtx4090", torch.float32, "fp32", True, "One chain of float32 multiply-adds"),
        ("a100", torch.float32, "fp32", False, "The tensor cores sum 32 of K at a time"),
        ("h200", torch.float32, "ieee", True, "One chain of float32 multiply-adds"),
        ("h200", torch.float32, "fp32", False, "The tensor cores sum 64 of K at a time"),
        ("h200", torch.bfloat16, "fp32", True, "One sum in float32 on the tensor cores"),
        ("t4", torch.int16, "fp32", True, "One chain of 32-bit integers"),
        ("h200", torch.float64, "fp32", True, "One sum of float64 on the tensor cores"),
        ("rtx4090", torch.float64, "fp32", True, "One chain of float64 multiply-adds"),
    ],
)
def test_what_is_promised(gpu: str, dtype: torch.dtype, accuracy: str, independent: bool, sums: str) -> None:
    found = explained(meta(4096, 4096, dtype=dtype), meta(4096, 4096, dtype=dtype), gpu, accuracy)
    assert found.promises.independent_of_other_rows == independent
    assert found.promises.sums.startswith(sums)
    assert ("An element depends on its row" in one_line(str(found))) == independent


@pytest.mark.parametrize(
    ("gpu", "accuracy", "k", "error"),
    [
        ("rtx4090", "fp32", 4096, "That of one chain of float32 roundings: up to twice that of torch's product"),
        ("a100", "fp32", 4096, "No larger than that of torch's float32 product"),
        ("t4", "tf32", 4096, "That of one chain of float32 roundings."),
        ("a100", "tf32", 4096, "No larger than that of torch's TF32 product"),
        ("h200", "ieee", 4096, "That of one chain of float32 roundings."),
        ("h200", "fp32", 4096, "No larger than that of torch's float32 product"),
        ("h200", "tf32", 4096, "No larger than that of torch's TF32 product"),
        ("h200", "fp32", 32, "As small as float32 can have it: one rounding."),
    ],
)
def test_the_error_of_float32_is_that_of_kernel_and_accuracy(gpu: str, accuracy: str, k: int, error: str) -> None:
    assert explained(meta(4096, k), meta(k, 4096), gpu, accuracy).promises.error.startswith(error)


def test_a_last_resort_on_hopper_promises_what_it_has() -> None:
    found = explained(meta(2, 2, 2, 2, 64, 64).transpose(0, 3).transpose(1, 2), meta(2, 2, 2, 2, 64, 64))
    assert found.launches[0].kernel == "simt"
    assert found.promises.error.startswith("That of one chain")


def test_alternatives_are_ten_at_most_and_the_rest_is_counted() -> None:
    found = explained(meta(8205, 2949), meta(2949, 5921))
    lines = section(str(found), "Not taken")
    assert len(lines) == 11
    assert lines[-1] == f"  and {len(found.alternatives) - 10} others"
    problem = Problem.of(meta(8205, 2949), meta(2949, 5921))
    refused = {family.name for family in FAMILIES if family.rejects(problem, H200)}
    assert refused <= {each.candidate for each in found.alternatives}
    few = explained(meta(8205, 2949), meta(2949, 5921), "t4")
    assert str(few).rstrip().endswith("and six others") and len(few.alternatives) == 16
    assert "hopper: needs compute capability 9.0, and Tesla T4 has 7.5" in str(few)


def test_without_a_gpu_it_is_an_h200_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = tilesmith.explain(torch.ones(5, 6), torch.ones(6, 7))
    assert (found.gpu, found.notes) == ("NVIDIA H200", ("torch finds no GPU here: this is for an NVIDIA H200.",))


def test_with_a_gpu_it_is_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    here = dataclasses.replace(A100, name="Some GPU", sm_count=10)
    rates = {"clock_rate": 1_000_000, "memory_clock_rate": 1_000_000, "memory_bus_width": 512}
    properties = SimpleNamespace(name="Some GPU", multi_processor_count=10, L2_cache_size=2**20, **rates)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(device, "installed", lambda index: here)
    found = tilesmith.explain(meta(512, 512), meta(512, 512))
    note = "No rates were fitted on Some GPU: times are estimated with those of NVIDIA H200."
    assert (found.gpu, found.notes) == ("Some GPU", (note,))
    assert found.estimate.clock_hz == 1e9
    assert found.work.bounds is not None and found.work.bounds.bytes_per_second == 128e9
    assert tilesmith.explain(meta(512, 512), meta(512, 512), gpu="t4").gpu == "Tesla T4"


def test_a_gpu_whose_peaks_are_not_known_has_clocks_and_no_roofline() -> None:
    plan = choose(Problem.of(meta(512, 512), meta(512, 512)), dataclasses.replace(A100, name="Some GPU"))
    found = explanation_of(plan)
    assert (found.work.bounds, found.estimate.us, found.estimate.rooflines) == (None, None, None)
    assert "no roofline: the peak rates of this GPU are not known" in str(found)
    assert f"{plan.cycles:,.0f} clocks" in str(found)


def test_an_estimate_below_the_roofline_says_why() -> None:
    below, above = (str(explained(meta(32768, 64), meta(64, 32768), gpu)) for gpu in ("rtx4090", "a100"))
    assert "less than the least time: memory decides" in below
    assert "less than the least time" not in above


def test_operands_that_are_converted_first_are_explained_as_such() -> None:
    a, b = meta(64, 64), meta(64, 64, dtype=torch.float16)
    found = tilesmith.explain(a, b, accuracy="fp32", gpu="a100")
    assert "converted to float32 first" in found.notes[1]
    assert found.product == "64 x 64 x 64 float32"
    with pytest.raises(RuntimeError, match="same dtype"):
        tilesmith.explain(a, b, gpu="a100")
    with pytest.raises(ValueError, match="unknown GPU 'k80'; known are h200"):
        tilesmith.explain(a, a, gpu="k80")


def test_parts_of_a_cost_sum_to_its_cycles() -> None:
    cost = Cost(product=1e5 + 0.1, preparation=2e4, idle_launches=3e3, reduction=4e2, scale=1.13, timer=6e3)
    assert sum(cost.cycles_by_part.values()) == pytest.approx(cost.cycles, rel=1e-14)


@pytest.mark.parametrize(
    ("name", "tflops"), [("h200", 1071), ("h100", 1071), ("a100", 312), ("l4", 121), ("rtx4090", 330), ("t4", 65)]
)
def test_peaks_are_those_of_the_data_sheets(name: str, tflops: float) -> None:
    rate = tensor_rate(KNOWN_GPUS[name].capability, "fp16")
    assert rate is not None and Peak.known(name).flops_per_second(rate) == pytest.approx(tflops * 1e12, rel=0.005)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["explain", *arguments])


def run_json(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def test_the_command_prints_the_text() -> None:
    result = run("2048x8192x4096:tn", "--gpu", "h200", "--dtype", "bfloat16")
    a, b = meta(8192, 2048, dtype=torch.bfloat16).T, meta(8192, 4096, dtype=torch.bfloat16)
    assert (result.exit_code, result.stdout) == (0, f"{explained(a, b)}\n")
    assert "A by columns, B by rows" in result.stdout


def test_the_command_prints_json_with_all_alternatives() -> None:
    found = run_json("512x1024x2048::128", "--gpu", "h100", "--accuracy", "tf32")
    assert (found["product"], found["gpu"]) == ("128 x 512 x 1024 x 2048 float32", "NVIDIA H100")
    assert found["work"]["precision"] == "tf32"
    plan = choose(Problem.of(meta(128, 512, 1024), meta(128, 1024, 2048), accuracy="tf32"), KNOWN_GPUS["h100"])
    assert len(found["alternatives"]) == len(list(rejections(plan))) > 10


def test_the_example_in_the_documentation_is_what_the_command_prints() -> None:
    documentation = (Path(__file__).parents[2] / "docs" / "explain.md").read_text()
    found = re.search(r"`tilesmith explain (.*)` prints\n\n```\n(.*?)```\n", documentation, re.DOTALL)
    assert found is not None and run(*found[1].split()).stdout == found[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["4096"], "'4096' is not a product: write MxKxN[:LAYOUT][:BATCH]"),
        (["4096x1024x-3"], "is not a product"),
        (["4096x0x5"], "has a size of 0"),
        (["5x6x7:nx"], "has the layout 'nx'; it is one of nn, nt, tn and tt"),
        (["5x6x7:nn:0"], "has a batch of '0'"),
        (["5x6x7", "--gpu", "k80"], "unknown GPU 'k80'; known are h200"),
        (["5x6x7", "--dtype", "complex64"], "'complex64' is not one of"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in one_line(result.stderr)
