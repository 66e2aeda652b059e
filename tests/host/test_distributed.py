"""Products of DTensors, in four processes on gloo, against one process."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("distributed")  # one worker starts the processes, once

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}

CASES = (
    "compiled",
    "every placement: matrices",
    "every placement: uneven",
    "every placement: small",
    "every placement: batch of a",
    "every placement: uneven batch",
    "every placement: batch of b",
    "every placement: one batch",
    "every placement: broadcast",
    "every placement: row",
    "every placement: column",
    "every placement: vectors",
    "every placement: vector by batch",
    "every placement: batch by vector",
    "no communication",
    "no communication for gradients",
    "two dimensions",
    "second derivative",
    "types",
    "out",
    "errors",
    "tensor parallel",
    "sequence parallel",
    "fully sharded",
    "tensor parallel layers",
    "distributed linear",
    "fully sharded layers",
)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """What went wrong in each case."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests/support/distributed_cases.py"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_all_cases_are_known(outcomes: dict[str, str]) -> None:
    assert tuple(outcomes) == CASES


@pytest.mark.parametrize("case", CASES)
def test_four_processes_agree_with_one(case: str, outcomes: dict[str, str]) -> None:
    assert outcomes[case] == "", outcomes[case]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_example_runs_under_torchrun(processes: int) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*command, ROOT / "examples/tensor_parallel.py", "--device=cpu", "--width=64", "--rows=32"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert f"{processes} processes on cpu" in done.stdout
    errors = dict(re.findall(r"^(output|gradient of \S+) .* (\S+)$", done.stdout, re.MULTILINE))
    assert list(errors) == ["output", "gradient of x", "gradient of up.weight", "gradient of down.weight"]
    assert all(float(error) < 1e-5 for error in errors.values())
