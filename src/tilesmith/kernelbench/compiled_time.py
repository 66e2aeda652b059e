"""How long the model of a problem takes as torch.compile makes it, in a process of its own.

python -m tilesmith.kernelbench.compiled_time PROBLEM

It prints milliseconds; the compiler may print what it likes before them.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import torch

from tilesmith.bench import timing
from tilesmith.kernelbench.check import loading

_SECONDS: Final = 300.0  # for one model
_ROUNDS: Final = 20


def milliseconds(problem: Path) -> float | None:
    """The median of several calls in float32; None if torch cannot compile the model, or not in time."""
    command = [sys.executable, "-m", __name__, str(problem)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        return float(done.stdout.split()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError):
        return None


def measured(problem: str) -> float:
    """The same in this process."""
    module: Any = loading.load(problem, "problem", ("Model", "get_inputs", "get_init_inputs"))
    model = loading.build(module.Model, module.get_init_inputs(), 0, "cuda")
    given = module.get_inputs()
    inputs = loading.with_leaves(given, loading.on("cuda", loading.leaves(given)))
    compiled: Any = torch.compile(model)
    with torch.no_grad(), timing.float32_precision("ieee"):
        found = timing.interleaved({"compiled": lambda: compiled(*inputs)}, rounds=_ROUNDS)
    return found["compiled"].median


if __name__ == "__main__":
    print(measured(sys.argv[1]))
