"""Products of DTensors, in four processes on gloo, against one process."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("distributed")  # a worker starts the processes

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done


def test_four_processes_agree_with_one() -> None:
    """In every case: the program says what went wrong in each, or that it was not reached."""
    done = run(ROOT / "tests/support/distributed_cases.py")
    print(done.stderr)
    outcomes: dict[str, str] = json.loads(done.stdout)
    assert len(outcomes) > 20
    assert not any(outcomes.values()), "\n".join(f"{case}:\n{wrong}" for case, wrong in outcomes.items() if wrong)


def test_the_example_runs_under_torchrun() -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run(*command, ROOT / "examples/tensor_parallel.py", "--device=cpu", "--width=64", "--rows=32")
    assert "2 processes on cpu" in done.stdout
    errors = dict(re.findall(r"^(output|gradient of \S+) .* (\S+)$", done.stdout, re.MULTILINE))
    assert list(errors) == ["output", "gradient of x", "gradient of up.weight", "gradient of down.weight"]
    assert all(float(error) < 1e-5 for error in errors.values())
