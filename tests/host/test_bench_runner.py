"""What `tilesmith bench` does around the measurements, which need a GPU: rounds, files, interruption, comparison."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from tilesmith.bench import runner
from tilesmith.bench.contenders import WrongResultError
from tilesmith.bench.markdown import markdown
from tilesmith.bench.results import OURS, TORCH, Competitor, Entry, Environment, Fastest, Results
from tilesmith.bench.runner import until_certain
from tilesmith.bench.suites import Product
from tilesmith.cli import main

RECORDED = Path(__file__).parents[1] / "data" / "bench.json"


class Clock:
    """Seconds that pass only while something is timed."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rounds_end_when_all_medians_are_certain() -> None:
    asked: list[tuple[int, int]] = []

    def timed(rounds: int, seed: int) -> dict[str, list[float]]:
        asked.append((rounds, seed))
        spread = 0.2 if len(asked) < 3 else 0.0
        return {OURS: [1.0] * rounds, "torch": [2.0 + spread * (i % 2) for i in range(rounds)]}

    samples = until_certain(timed, seconds=60, clock=Clock())
    assert [rounds for rounds, _ in asked] == [20] * len(asked)
    assert len({seed for _, seed in asked}) == len(asked) == 3  # every time in another order
    assert {len(times) for times in samples.values()} == {20 * len(asked)}
    assert Competitor("", tuple(samples["torch"])).uncertainty < 0.01


def test_rounds_end_when_the_time_is_over() -> None:
    clock = Clock()

    def timed(rounds: int, seed: int) -> dict[str, list[float]]:
        clock.now += 1
        return {OURS: [1.0 + i % 2 for i in range(rounds)]}

    assert len(until_certain(timed, seconds=2.5, clock=clock)[OURS]) == 60


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Product]]:
    """As if there were a GPU, on which the products of a recorded run take what they took. The products that are asked
    for."""
    asked: list[Product] = []
    recorded = Results.read(RECORDED)

    def measure(product: Product, suite: str, settings: runner.Settings) -> Entry:
        asked.append(product)
        return replace(recorded.entries[0], suite=suite, name=product.name, shape=str(product), dtype=product.dtype)

    def environment(command: list[str], settings: runner.Settings, commit: str | None) -> Environment:
        return replace(recorded.environment, command=" ".join(command), commit=commit or "")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(runner, "measure", measure)
    monkeypatch.setattr(runner, "environment", environment)
    monkeypatch.setattr(runner, "compile_kernels", lambda products, settings: None)
    yield asked


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


def test_suites_and_shapes_are_measured_and_written(gpu: list[Product], tmp_path: Path) -> None:
    kinds = ("json", "html", "png", "markdown")
    files = [tmp_path / f"r.{kind}" for kind in kinds]
    to_files = [each for kind, file in zip(kinds, files, strict=True) for each in (f"--{kind}", file)]
    done = bench("--suite", "seeds", "--shape", "64x32x16:nt", "--dtype", "bfloat16", "--commit", "c0ffee", *to_files)
    assert done.exit_code == 0, done.output
    assert len(gpu) == 6
    assert {product.dtype for product in gpu} == {"bfloat16"}
    assert (gpu[-1].m, gpu[-1].k, gpu[-1].n, gpu[-1].b_layout) == (64, 32, 16, "transposed")
    read = Results.read(files[0])
    assert read.suites == ("seeds", "shapes")
    assert len(read.entries) == 6
    assert "geometric mean" in done.output
    assert "<html" in files[1].read_text()
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert "- commit: c0ffee" in files[3].read_text()
    assert "### seeds, bfloat16" in files[3].read_text()


def test_an_included_suite_is_named_beside_the_one_that_includes_it(gpu: list[Product], tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    assert bench("--suite", "tf32", "--json", target).exit_code == 0
    assert Results.read(target).suites == ("tf32: aligned", "tf32")
    assert {(product.accuracy, product.against) for product in gpu} == {("tf32", "torch-tf32")}


def test_the_five_reference_products_are_the_default(gpu: list[Product]) -> None:
    assert bench().exit_code == 0
    assert [product.name for product in gpu] == ["square", "large K", "transposed A", "tiny K", "irregular"]


def test_ctrl_c_keeps_what_was_measured(gpu: list[Product], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measure = runner.measure

    def interrupted(product: Product, suite: str, settings: runner.Settings) -> Entry:
        if len(gpu) == 2:
            raise KeyboardInterrupt
        return measure(product, suite, settings)

    monkeypatch.setattr(runner, "measure", interrupted)
    target = tmp_path / "r.json"
    done = bench("--json", target)
    assert done.exit_code == 130
    read = Results.read(target)
    assert len(read.entries) == 2
    assert len(read.unfinished) == 3


@pytest.mark.usefixtures("gpu")
def test_a_wrong_result_is_not_timed_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def wrong(product: Product, suite: str, settings: runner.Settings) -> Entry:
        raise WrongResultError("the result of ours is wrong")

    monkeypatch.setattr(runner, "measure", wrong)
    files = [tmp_path / f"r.{kind}" for kind in ("html", "png")]
    done = bench("--shape", "4x4x4", "--html", files[0], "--png", files[1])
    assert done.exit_code == 0
    assert [file.exists() for file in files] == [True, False]  # there is nothing to plot
    assert "Not measured: shapes: 4x4x4" in done.output
    assert "the result of ours is wrong" in done.output


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--shape", "4x4"], "not a product"),
        (["--against", "torch,mkl"], "mkl"),
        (["--suite", "none"], "none"),
        (["--seconds", "0"], "seconds"),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_wrong_usage_is_said(arguments: list[str], word: str) -> None:
    done = bench(*arguments)
    assert done.exit_code == 2
    assert word in done.output


def test_without_a_gpu_one_line_says_so_and_offers_explain() -> None:
    done = bench()
    assert done.exit_code == 2
    assert "torch finds none here" in done.output
    assert "tilesmith explain" in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_two_runs_are_compared_without_a_gpu(tmp_path: Path) -> None:
    recorded = Results.read(RECORDED)
    assert bench("--compare", RECORDED, RECORDED).exit_code == 0
    slower = tmp_path / "slower.json"
    first, *rest = recorded.entries
    late = replace(first.ours, samples_ms=tuple(1.1 * x for x in first.ours.samples_ms))
    replace(recorded, entries=(replace(first, competitors={**first.competitors, OURS: late}), *rest)).write(slower)
    done = bench("--compare", RECORDED, slower)
    assert done.exit_code == 1
    assert first.shape in done.output
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"format": 0}))
    assert bench("--compare", RECORDED, other).exit_code == 2


def test_losers_are_listed_with_what_the_best_plan_would_give(tmp_path: Path) -> None:
    recorded, written = Results.read(RECORDED), tmp_path / "random.json"
    first, second, third = (replace(each, suite="random", tries_all=True) for each in recorded.entries[:3])

    def with_ratio(entry: Entry, ratio: float) -> Entry:
        late = replace(entry.ours, samples_ms=tuple(x / ratio for x in entry.competitors[TORCH].samples_ms))
        return replace(entry, competitors={**entry.competitors, OURS: late})

    losers = with_ratio(first, 0.95), replace(with_ratio(second, 0.5), fastest=Fastest("another plan", 1.5))
    replace(recorded, entries=(*losers, with_ratio(third, 0.98)), unfinished=()).write(written)
    done = bench("--from", written)
    assert done.exit_code == 0, done.output
    lines = " ".join(done.output.split())
    assert "random: 2 of 3 under 0.97 of torch's speed, 1 under 0.9" in lines
    found = lines.index(f"0.50 with {second.plan}; the best plan, another plan: 0.75")
    assert found < lines.index(f"0.95 with {first.plan}")  # the slowest come first


def test_recorded_runs_become_one_page_without_a_gpu(tmp_path: Path) -> None:
    target = tmp_path / "results.md"
    done = bench("--from", RECORDED, "--from", RECORDED, "--markdown", target)
    assert done.exit_code == 0, done.output
    text = target.read_text()
    recorded = Results.read(RECORDED)
    assert text.count(f"- card: {recorded.environment.gpu}") == 2
    assert f"- command: `{recorded.environment.command}`" in text
    assert "- commit: not recorded" in text
    for entry in recorded.entries:
        assert f"### {entry.suite}, {entry.kind}\n" in text
        assert f"| {entry.shape} |" in text
        if "torch" in entry.competitors:
            assert f"**{entry.ratio('torch'):.3f}**" in text
    assert recorded.unfinished[0] in text


def test_the_mean_of_a_table_is_that_of_its_rows() -> None:
    recorded = Results.read(RECORDED)
    seeds = replace(recorded, entries=tuple(each for each in recorded.entries if each.suite == "seeds"))
    mean = recorded.mean_ratio("seeds", "torch")
    least = min(each.ratio("torch") for each in seeds.entries)
    assert f"Against torch: geometric mean **{mean:.3f}**, least {least:.3f}, of 5 products." in markdown([seeds])


def test_ratios_are_within_a_precision_class_alone() -> None:
    recorded = Results.read(RECORDED)
    float32 = recorded.entries[0]
    assert float32.competitors["torch tf32"].precision == "tf32"
    assert float32.opponents == recorded.opponents == ("torch",)
    assert recorded.mean_ratio("seeds", "torch tf32") is None
    assert "torch tf32" not in markdown([recorded])
    done = bench("--from", RECORDED)
    assert "ratios to torch:" in done.output and "tf32" not in done.output


def test_the_bandwidth_of_a_run_is_that_of_what_does_not_stay_in_l2() -> None:
    half = Results.read(next(Path(__file__).parents[2].glob("docs/results/*-half.json")))
    assert half.bandwidth == pytest.approx(4800, rel=0.01)


def test_rows_of_a_table_have_as_many_cells_as_its_head() -> None:
    rows = [line for line in markdown([Results.read(RECORDED)]).splitlines() if line.startswith("|")]
    heads = [i for i, line in enumerate(rows) if set(line) <= set("|-")]
    for first, last in zip(heads, [*(i - 1 for i in heads[1:]), len(rows)], strict=True):
        assert {line.count("|") for line in rows[first - 1 : last]} == {rows[first].count("|")}


def test_calls_by_the_wall_clock_say_how_many_are_too_slow() -> None:
    recorded = Results.read(RECORDED)
    entry = replace(recorded.entries[0], clock="wall", variant="addmm, bias")

    def call(torch_ms: float, ours_ms: float) -> Entry:
        times = {OURS: ours_ms, "torch": torch_ms}
        return replace(entry, competitors={name: Competitor("fp32", (ms,), host_ms=ms) for name, ms in times.items()})

    slow, slow_but_short, fast = call(0.1, 0.106), call(0.02, 0.0225), call(0.1, 0.05)
    assert [each.is_behind for each in (slow, slow_but_short, fast)] == [True, False, False]
    text = markdown([replace(recorded, entries=(slow, slow_but_short, fast))])
    assert "slower than torch by more than 5% above 50 us or 15% below: 1." in text
    assert "to issue a call: ours, torch" in text
    many = markdown([replace(recorded, entries=(slow,) * 70 + (fast,) * 2)])
    assert many.count("addmm, bias") == 20
    assert "| 0.87 to 0.95 | 70 |" in many


def test_a_picture_of_several_runs_is_refused_and_a_page_has_them(tmp_path: Path) -> None:
    twice = ("--from", RECORDED, "--from", RECORDED)
    done = bench(*twice, "--png", tmp_path / "r.png")
    assert done.exit_code == 2
    assert "--html and --markdown take several" in done.output
    assert bench(*twice, "--html", tmp_path / "r.html").exit_code == 0
    assert (tmp_path / "r.html").read_text().count(f"{Results.read(RECORDED).environment.command}</code>") == 2


def test_files_keep_a_line_for_each_list_of_samples(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    recorded = Results.read(RECORDED)
    recorded.write(target)
    assert Results.read(target) == recorded
    line = next(line for line in target.read_text().splitlines() if "samples_ms" in line)
    assert line.count(",") == len(recorded.entries[0].ours.samples_ms)


def test_the_page_of_results_is_what_the_recorded_runs_say() -> None:
    docs = Path(__file__).parents[2] / "docs"
    runs = [Results.read(path) for path in sorted((docs / "results").glob("*.json"))]
    assert runs
    assert (docs / "results.md").read_text() == markdown(runs), "run `make results`"
