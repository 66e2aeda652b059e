"""`tilesmith bench` and `tilesmith tune` on the GPU, on small products."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tilesmith.bench.results import AGAIN, OURS, TORCH, Results
from tilesmith.cli import main
from tilesmith.core.device import installed
from tilesmith.core.problem import Problem
from tilesmith.planner import choose


def bench(folder: Path, *arguments: str) -> Results:
    """A run that finishes all that it begins."""
    target = folder / "r.json"
    done = CliRunner().invoke(main, ["bench", *arguments, "--record", str(target)])
    assert done.exit_code == 0, done.output
    results = Results.read(target)
    assert results.unfinished == ()
    return results


def test_a_run_has_times_errors_and_the_state_of_the_gpu(tmp_path: Path) -> None:
    arguments = ["--shape", "1024x1024x1024", "--shape", "300x200x100:tn:3", "--against", "torch,torch-tf32"]
    results = bench(tmp_path, *arguments, "--html", str(tmp_path / "r.html"))
    assert results.environment.gpu == installed(0).name
    for entry in results.entries:
        assert set(entry.competitors) == {OURS, "torch", AGAIN, "torch-tf32"}
        assert {each.precision for each in entry.competitors.values()} == {"fp32", "tf32"}
        for name, each in entry.competitors.items():
            assert len(each.samples_ms) >= 20
            assert min(each.samples_ms) > 0
            assert each.norm is not None
            assert each.norm < (1e-5 if each.precision == "fp32" else 1e-2)
            assert (each.graph_ms is None) == (name == AGAIN or entry.ours.median > 0.05)
        assert entry.state is not None and entry.state.sm_mhz[1] > 100
        assert entry.roofline_share is None or 0 < entry.roofline_share < 1


def test_of_integers_torch_has_one_product(tmp_path: Path) -> None:
    (entry,) = bench(tmp_path, "--shape", "128x128x128:nt", "--dtype", "int8").entries
    assert list(entry.competitors) == [OURS, TORCH, AGAIN]
    (entry,) = bench(tmp_path, "--shape", "128x127x128", "--dtype", "int8").entries
    assert list(entry.competitors) == [OURS]


def test_triton_is_an_opponent(tmp_path: Path) -> None:
    results = bench(tmp_path, "--shape", "256x384x200", "--shape", "64x96x72:nt:2", "--against", "triton")
    for entry in results.entries:
        norm = entry.competitors["triton"].norm
        assert norm is not None and norm < 1e-5


def test_calls_are_timed_by_the_wall_clock(tmp_path: Path) -> None:
    results = bench(tmp_path, "--suite", "host", "--seconds", "0.1")
    assert len(results.entries) == 7
    for entry in results.entries:
        assert entry.clock == "wall"
        assert list(entry.competitors) == [OURS, "torch"]
        for each in entry.competitors.values():
            assert each.norm is not None and each.norm < 1e-2
            assert each.host_ms is not None and 0 < each.host_ms < 10


@pytest.mark.parametrize(("suite", "count"), [("pack", 6), ("epilogue", 8)])
def test_packed_operands_and_epilogues_are_right_and_timed(suite: str, count: int, tmp_path: Path) -> None:
    results = bench(tmp_path, "--suite", suite, "--seconds", "0.1")
    assert len(results.entries) == count
    assert len({entry.variant for entry in results.entries}) >= 3
    assert all(entry.ours.norm is not None and entry.ours.norm < 1e-2 for entry in results.entries)


def test_tuning_keeps_a_plan_that_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = tmp_path / "t.json"
    done = CliRunner().invoke(main, ["tune", "--shape", "512x2048x512", "--dtype", "bfloat16", "--record", str(target)])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(target.read_text())
    assert found["regret"] >= 1
    assert found["milliseconds"][found["best"]] == min(found["milliseconds"].values())
    operands = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((512, 2048), (2048, 512))]
    chosen = choose(Problem.of(*operands), installed(0))
    assert chosen.name == (found["best"] if found["regret"] > 1.01 else found["choice"])
    assert CliRunner().invoke(main, ["tune", "--forget"]).exit_code == 0
