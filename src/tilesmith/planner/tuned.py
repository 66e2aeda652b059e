"""The plans that `tilesmith tune` measured to be the fastest on this machine, by problem.

They are kept in the user's cache, one file for each GPU, driver and version of the package: what another one measured
says nothing. A file that cannot be read is as good as none.
"""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import torch

from tilesmith.core import nvml
from tilesmith.core.cache_dir import directory
from tilesmith.core.device import Device
from tilesmith.core.problem import EpilogueSpec, Matrix, Problem
from tilesmith.version import VERSION

_FOLDER: Final = "tuned"


def preferred(problem: Problem, device: Device) -> str | None:
    """The name of the plan that was the fastest for this problem here; None if nobody has measured."""
    known = _known(device)
    return known.get(key(problem)) if known else None


def remember(found: Mapping[str, str], device: Device) -> Path:
    """Keeps names of plans by `key`, besides those that are kept already. Returns the file."""
    path = file(device)
    kept = {**_read(path), **found}
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, aside = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as to:
        json.dump(kept, to, indent=1, sort_keys=True)
    os.replace(aside, path)  # another process sees the old ones or the new ones
    _known.cache_clear()
    return path


def forget(device: Device) -> bool:
    """Removes what is kept for this GPU. Whether there was anything."""
    _known.cache_clear()
    try:
        file(device).unlink()
    except FileNotFoundError:
        return False
    return True


def file(device: Device) -> Path:
    """Where the plans for a GPU of this machine are kept."""
    name = "-".join(re.sub(r"[^\w.]+", "_", part) for part in (device.name, nvml.driver_version(), VERSION))
    return directory() / _FOLDER / f"{name}.json"


def key(problem: Problem) -> str:
    """A problem by everything that a plan may depend on.

    >>> a = torch.empty(3, 4, device="meta"); key(Problem.of(a, a.T))
    '3x4x3 fp32 a float32 4,1 16 b float32 1,4 16 out float32 3,1 16'
    """
    p = problem
    batch = f"{'x'.join(map(str, p.batch))} of " if p.batch else ""
    matrices = (f"{name} {_matrix(matrix)}" for name, matrix in (("a", p.a), ("b", p.b), ("out", p.out)))
    zeros = " skips zeros" if p.skips_zeros else ""
    return f"{batch}{p.m}x{p.k}x{p.n} {p.accuracy}{zeros} {' '.join(matrices)}{_epilogue(p.epilogue)}"


def _epilogue(epilogue: EpilogueSpec | None) -> str:
    if epilogue is None:
        return ""
    added = (("bias", epilogue.bias), ("residual", epilogue.residual))
    matrices = (f"{name} {_matrix(matrix)}" for name, matrix in added if matrix is not None)
    return " ".join(["", *(["scaled"] if epilogue.is_scaled else []), *filter(None, [epilogue.activation]), *matrices])


def _matrix(matrix: Matrix) -> str:
    dtype = str(matrix.dtype).removeprefix("torch.")
    strides = ",".join(map(str, (*matrix.batch_strides, matrix.row_stride, matrix.column_stride)))
    return f"{dtype} {strides} {matrix.alignment}{' packed' if matrix.packed else ''}"


@cache
def _known(device: Device) -> dict[str, str]:
    has_any = (directory() / _FOLDER).is_dir() and torch.cuda.is_available()
    return _read(file(device)) if has_any else {}


def _read(path: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(path.read_text())
        if isinstance(kept, dict) and all(isinstance(x, str) for x in kept.values()):
            return kept
    return {}
