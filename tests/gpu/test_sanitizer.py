"""Every kernel under compute-sanitizer: the lane `make test-sanitizer`, or `pytest tests -m sanitizer`.

Not a part of `-m gpu`: a run takes minutes.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sanitized_launches

from tilesmith.kernelbench.check import sanitizer

pytestmark = pytest.mark.sanitizer

PROGRAM = Path(sanitized_launches.__file__)
SOURCE = PROGRAM.parents[2] / "src"
# The driver's bindings ask for symbols that the driver may not have: those are no errors of ours.
TOOLS = {"memcheck": ["--report-api-errors", "no"], "racecheck": [], "synccheck": []}
SECONDS = 1200


@pytest.mark.parametrize("kind", sanitized_launches.KINDS)
@pytest.mark.parametrize("tool", TOOLS)
def test_no_launch_has_an_error(tool: str, kind: str) -> None:
    found = sanitizer.find()
    assert found is not None, "compute-sanitizer is not on the PATH: install the CUDA toolkit's, this lane needs it"
    done = subprocess.run(
        [found, "--tool", tool, *TOOLS[tool], sys.executable, PROGRAM, kind],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert errors(done.stdout) == 0, done.stdout
    launched = re.search(r"^(\d+) launches$", done.stdout, re.MULTILINE)
    assert launched is not None and int(launched[1]) > 0, done.stdout


def errors(printed: str) -> int:
    """How many the tool counts: racecheck speaks of hazards."""
    counts = re.findall(r"SUMMARY: (\d+) (?:error|hazard)", printed)
    assert counts, printed
    return sum(map(int, counts))
