"""The examples and the sweep, small, by the emulated kernels; each as one command."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tilesmith.device import named
from tilesmith.planner import choose
from tilesmith.problem import Problem

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("emulator_cache")

has_matplotlib = importlib.util.find_spec("matplotlib") is not None


def run(script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, ROOT / script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""},  # as if there were no GPU
        capture_output=True,
        text=True,
        timeout=120,
    )


def printed(script: str, *arguments: object) -> str:
    done = run(script, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_transformer_trains_as_in_float64(tmp_path: Path) -> None:
    picture = tmp_path / "losses.png"
    output = printed("examples/train_gpt.py", "--small", "--plot", picture)
    rows = re.findall(r"^(\w[\w ,]*?) +\S+ +\S+ +(\S+) to (\S+) +(\S+) +(\S+)$", output, re.MULTILINE)
    losses = {name: (float(first), float(last), float(distance)) for name, first, last, distance, _ in rows}
    assert set(losses) >= {
        "torch fp32",
        *(f"torch fp32, shuffled {seed}" for seed in range(1, 6)),
        "tilesmith",
        "float64",
    }
    for first, last, distance in losses.values():
        assert last < first - 0.1
        assert distance < 1e-5
    assert " tilesmith  exact " in output
    assert picture.is_file() == has_matplotlib
    assert ("matplotlib is not installed" in output) == (not has_matplotlib)


def test_equations_are_solved_as_exactly_as_by_torch() -> None:
    output = printed("examples/solve.py", "--small")
    rows = re.findall(r"^(torch fp32|tilesmith) .* (\S+) +(\S+)$", output, re.MULTILINE)
    errors = {name: (float(residual), float(solution)) for name, residual, solution in rows}
    assert list(errors) == ["torch fp32", "tilesmith"]
    assert errors["tilesmith"][0] < min(1e-6, 1.1 * errors["torch fp32"][0])
    assert errors["tilesmith"][1] < min(1e-4, 1.5 * errors["torch fp32"][1])


def test_logits_and_their_gradients_have_the_error_of_bfloat16() -> None:
    output = printed("examples/bf16_vocab.py", "--small")
    errors = re.findall(r"^(logits|gradient of \w+) +(\S+) +(\S+)$", output, re.MULTILINE)
    assert [name for name, *_ in errors] == ["logits", "gradient of x", "gradient of weight"]
    assert all(1e-4 < float(ours) < 2**-8 for _, _, ours in errors)
    assert output.count(" tilesmith  sm90 ") == 3


def test_the_sweep_writes_what_it_measured(tmp_path: Path) -> None:
    file = tmp_path / "sweep.json"
    assert " of 6" in printed("scripts/sweep_override.py", "--small", "--json", file)
    founds = json.loads(file.read_text())
    assert len(founds) == 6
    assert {found["where"] for found in founds} == {"tilesmith"}
    for found in founds:
        assert found["ratio"] == found["torch_us"] / found["ours_us"]
        assert min(found["torch_host_us"], found["ours_host_us"]) > 0
        assert found["why"]


@pytest.mark.parametrize("script", ["train_gpt", "solve", "bf16_vocab"])
def test_without_a_gpu_an_example_says_so(script: str) -> None:
    done = run(f"examples/{script}.py")
    assert done.returncode == 1
    assert "needs an NVIDIA GPU; --small runs" in done.stderr


def test_the_shapes_of_the_sweep_are_many_and_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import sweep_override as sweep

    cases = list(sweep.cases(200))
    assert cases == list(sweep.cases(200))
    assert len(set(cases)) == 200
    assert all(case.flops <= sweep.MOST_FLOPS and case.bytes <= sweep.MOST_BYTES for case in cases)
    kinds = Counter((case.operator, case.addend, case.dtype, case.layout) for case in cases)
    assert len(kinds) == len(sweep.FORMS) * len(sweep.DTYPES) * len(sweep.LAYOUTS)
    assert min(kinds.values()) >= 4
    sizes = [size for case in cases for size in (case.m, case.k, case.n)]
    assert min(sizes) == 1
    assert max(sizes) > 4096
    assert 0.2 < sum(size % 2 for size in sizes) / len(sizes) < 0.4
    small = sum(case.flops < 2**20 for case in cases)
    assert 20 < small < 100


def test_the_operands_of_the_sweep_have_the_layouts_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import sweep_override as sweep

    for case in sweep.cases(45):
        a, b = case.operands("meta")
        assert a.shape[-2:] == (case.m, case.k) and b.shape[-2:] == (case.k, case.n)
        assert a.mT.is_contiguous() if case.layout[0] == "t" else a.is_contiguous()
        assert b.mT.is_contiguous() if case.layout[1] == "t" else b.is_contiguous()
        assert case.call("meta")().shape == (*a.shape[:-1], case.n)
        assert choose(Problem.of(a, b), named("h200")).problem.flops == case.flops
