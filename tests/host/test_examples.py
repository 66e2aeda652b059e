"""The examples, small, by the emulated kernels; each as one command."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    shuffled = (f"torch fp32, shuffled {seed}" for seed in range(1, 6))
    assert set(losses) >= {"torch fp32", *shuffled, "tilesmith", "float64"}
    for first, last, distance in losses.values():
        assert last < first - 0.1
        assert distance < 1e-5
    assert " tilesmith  fp64_mma " in output
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
    assert len(re.findall(" tilesmith  (hopper|half_mma) ", output)) == 3


def test_without_a_gpu_an_example_says_so(tmp_path: Path) -> None:
    """All of them in one process, which has imported torch."""
    scripts = [str(ROOT / "examples" / f"{name}.py") for name in ("train_gpt", "solve", "bf16_vocab")]
    program = tmp_path / "all.py"
    program.write_text(f"""
import runpy, sys
sys.path.insert(0, {str(ROOT / "examples")!r})
for script in {scripts}:
    sys.argv = [script]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        print(end)
""")
    assert printed(str(program)).count("needs an NVIDIA GPU; --small runs") == len(scripts)
