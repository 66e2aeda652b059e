"""What `tilesmith bench` does around the measurements, which need a GPU: rounds, files, interruption, comparison."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from tilesmith.bench import runner
from tilesmith.bench.results import OURS, Competitor, Entry, Environment, Results
from tilesmith.bench.runner import WrongResultError, until_certain
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


# The command.


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Product]]:
    """As if there were a GPU, on which the products of a recorded run take what they took. The products that are asked
    for."""
    asked: list[Product] = []
    recorded = Results.read(RECORDED)

    def measure(product: Product, suite: str, settings: runner.Settings) -> Entry:
        asked.append(product)
        return replace(recorded.entries[0], suite=suite, name=product.name, shape=str(product), dtype=product.dtype)

    def environment(command: list[str], settings: runner.Settings) -> Environment:
        return replace(recorded.environment, command=" ".join(command))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(runner, "measure", measure)
    monkeypatch.setattr(runner, "environment", environment)
    yield asked


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


def test_suites_and_shapes_are_measured_and_written(gpu: list[Product], tmp_path: Path) -> None:
    files = [tmp_path / f"r.{kind}" for kind in ("json", "html", "png")]
    to_files = [each for kind, file in zip(("json", "html", "png"), files, strict=True) for each in (f"--{kind}", file)]
    done = bench("--suite", "seeds", "--shape", "64x32x16:nt", "--dtype", "bfloat16", *to_files)
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
