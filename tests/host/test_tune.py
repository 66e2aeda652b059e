"""Tuning without a GPU: which candidates are timed, what is kept and for whom, and which products a program makes."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tilesmith.bench import timing, tuning
from tilesmith.bench.recording import record
from tilesmith.bench.timing import Timing
from tilesmith.cli import main
from tilesmith.core import device, nvml
from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.planner import candidates, choose, rejections, tuned
from tilesmith.runtime import cache

H200 = KNOWN_GPUS["h200"]


def problem(m: int = 512, k: int = 4096, n: int = 512) -> Problem:
    return Problem.of(torch.empty(m, k, device="meta"), torch.empty(k, n, device="meta"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if an H200 were here, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(nvml, "driver_version", lambda: "600.1")
    tuned._known.cache_clear()


@pytest.mark.usefixtures("gpu")
class TestKept:
    def test_what_was_measured_to_be_fastest_is_chosen(self) -> None:
        expected = choose(problem(), H200)
        other = next(each.name for each in candidates(problem(), H200) if each.name != expected.name)
        tuned.remember({tuned.key(problem()): other}, H200)
        plan = choose(problem(), H200)
        assert (plan.name, plan.is_tuned, expected.is_tuned) == (other, True, False)
        assert {each.reason for each in rejections(plan) if each.candidate == expected.name} == {
            "another was measured to be the fastest"
        }
        assert choose(problem(n=520), H200).name == choose(problem(n=520), KNOWN_GPUS["h100"]).name
        assert tuned.forget(H200)
        assert choose(problem(), H200) == expected
        assert not tuned.forget(H200)

    def test_a_plan_that_is_no_longer_legal_is_not_chosen(self) -> None:
        expected = choose(problem(), H200)
        tuned.remember({tuned.key(problem()): "sm80 1x1"}, H200)
        assert choose(problem(), H200) == expected

    def test_later_ones_join_earlier_ones(self) -> None:
        for n in (512, 513):
            tuned.remember({tuned.key(problem(n=n)): f"plan {n}"}, H200)
        assert [tuned.preferred(problem(n=n), H200) for n in (512, 513, 514)] == ["plan 512", "plan 513", None]

    def test_they_are_for_one_gpu_driver_and_version(self, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tuned.remember({tuned.key(problem()): "x"}, H200)
        assert path != tuned.file(KNOWN_GPUS["h100"])
        monkeypatch.setattr(nvml, "driver_version", lambda: "600.2")
        assert path != tuned.file(H200)
        monkeypatch.setattr(tuned, "VERSION", "9.9")
        assert "9.9" in tuned.file(H200).name

    @pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', "{"])
    def test_a_file_that_cannot_be_read_is_as_good_as_none(self, text: str) -> None:
        path = tuned.file(H200)
        path.parent.mkdir(parents=True)
        path.write_text(text)
        assert tuned.preferred(problem(), H200) is None

    def test_many_threads_keep_whole_files(self) -> None:
        with ThreadPoolExecutor(8) as pool:
            assert len(list(pool.map(lambda i: tuned.remember({str(i): "x"}, H200), range(8)))) == 8
        assert json.loads(tuned.file(H200).read_text())


def test_the_key_tells_problems_apart_that_may_have_other_plans() -> None:
    a = torch.empty(64, 64, device="meta")
    shifted = torch.empty(64 * 64 + 1, device="meta")[1:].view(64, 64)
    batch = torch.empty(3, 64, 64, device="meta")
    problems = [
        Problem.of(a, a),
        Problem.of(a.T, a),
        Problem.of(a, a.T),
        Problem.of(shifted, a),
        Problem.of(a.half(), a.half()),
        Problem.of(a.half(), a.half(), out_dtype=torch.float32),
        Problem.of(a, a, accuracy="tf32"),
        Problem.of(a, a, packed=(False, True)),
        Problem.of(a, a, skips_zeros=True),
        Problem.of(batch, batch),
        Problem.of(a, a, out=torch.empty(64, 64, device="meta").T),
    ]
    assert len({tuned.key(each) for each in problems}) == len(problems)


def test_without_a_gpu_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise AssertionError("NVML was asked")

    monkeypatch.setattr(nvml, "driver_version", fail)
    tuned._known.cache_clear()
    assert tuned.preferred(problem(), H200) is None


@pytest.mark.usefixtures("gpu")
class TestTuning:
    @pytest.fixture(autouse=True)
    def fake_times(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Plans take as many milliseconds as their names are long, so that the shortest name wins."""
        self.timed: list[list[str]] = []

        def interleaved(calls: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, Timing]:
            self.timed.append(list(calls))
            return {name: Timing((float(len(name)),) * rounds) for name in calls}

        def compiled(plan: Plan, index: int) -> Callable[..., None]:
            return lambda a, b: None

        monkeypatch.setattr(timing, "interleaved", interleaved)
        monkeypatch.setattr(tuning, "compiled", compiled)
        monkeypatch.setattr(cache, "cubin", lambda text, arch, about: b"")
        monkeypatch.setattr(tuning, "_operand", lambda problem, matrix: torch.empty(0))
        monkeypatch.setattr(device, "installed", lambda index: H200)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def test_the_fastest_is_found_among_those_that_are_worth_a_try(self) -> None:
        every = sorted(candidates(problem(), H200), key=lambda each: each.cycles)
        found = tuning.tune(problem(), within=1.3)
        tried = [each.name for each in every if each.cycles <= 1.3 * every[0].cycles]
        assert self.timed[0] == tried
        assert set(self.timed[1]) <= set(tried)
        assert every[0].name in self.timed[1]
        assert found.expected == every[0].name
        assert len(found.best) == min(map(len, tried))
        assert found.untried == len(every) - len(tried)
        assert found.regret == len(found.expected) / len(found.best)
        assert list(found.milliseconds.values()) == sorted(found.milliseconds.values())

    def test_the_best_has_been_through_the_last_rounds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also if they are slower than the first ones: those that were left out would seem to be faster then."""
        thorough: set[str] = set()

        def interleaved(calls: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, Timing]:
            if rounds == tuning._LAST_ROUNDS:
                thorough.update(calls)
            slower = 2.0 if rounds == tuning._LAST_ROUNDS else 1.0
            return {name: Timing((slower * len(name),) * rounds) for name in calls}

        monkeypatch.setattr(timing, "interleaved", interleaved)
        found = tuning.tune(problem(), within=3.0)
        assert found.best in thorough
        assert thorough < found.milliseconds.keys()

    def test_the_command_keeps_winners_and_reports_regret(self, tmp_path: Path) -> None:
        target = tmp_path / "t.json"
        arguments = ["tune", "--shape", "512x4096x512", "--dtype", "bfloat16", "--record", str(target)]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        assert "regret: geometric mean" in done.output
        (written,) = json.loads(target.read_text())
        assert written["regret"] >= 1
        found = Problem.of(*(torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((512, 4096), (4096, 512))))
        if written["regret"] > 1.01:
            assert choose(found, H200).name == written["best"]
        assert CliRunner().invoke(main, ["tune", "--forget"]).exit_code == 0
        assert not choose(found, H200).is_tuned


def test_what_the_command_needs() -> None:
    done = CliRunner().invoke(main, ["tune", "--shape", "4x4x4"])
    assert done.exit_code == 2
    assert "finds none here" in done.output


SCRIPT = """
import sys
import torch
from torch import nn
assert __name__ == "__main__"
layer = nn.Linear(40, 30)
for _ in range(3):
    layer(torch.rand(20, 40)).sum().backward()
torch.einsum("bij,bjk->bik", torch.rand(5, 6, 7), torch.rand(5, 7, 8))
torch.ones(3, 3, dtype=torch.complex64) @ torch.ones(3, 3, dtype=torch.complex64)
sys.exit(0)
"""


def test_the_products_of_a_program_are_recorded_with_their_layouts(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    found = record(path)
    shapes = {(p.batches, p.m, p.k, p.n): count for p, count in found.items()}
    assert shapes == {(1, 20, 40, 30): 3, (1, 30, 20, 40): 3, (5, 6, 7, 8): 1}
    (linear,) = (p for p in found if (p.m, p.n) == (20, 30))
    assert (linear.b.row_stride, linear.b.column_stride) == (1, 40)  # a weight is stored (N, K)


def test_a_program_that_fails_says_so(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("raise RuntimeError('no data')")
    with pytest.raises(RuntimeError, match="no data"):
        record(path)
