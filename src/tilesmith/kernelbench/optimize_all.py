"""A module for every problem of a folder: written at the same time, judged one after the other where there is a GPU."""

import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.core.threads import at_once
from tilesmith.kernelbench import compiled_time
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.check.verdict import Verdict
from tilesmith.kernelbench.check_all import BUILDS
from tilesmith.kernelbench.optimizing import Optimized, is_here, optimized
from tilesmith.kernelbench.problem_file import ProblemError

HEADINGS: Final = ("problem", "fused", "torch ms", "torch.compile ms", "ours ms", "ratio", "class", "left to torch")


@dataclass(frozen=True, slots=True)
class Row:
    """One problem: its module, or why there is none."""

    problem: str
    module: Optimized | None
    refused: str
    compiled_ms: float | None = None  # what torch.compile makes of the model; None if it was not timed

    @property
    def verdict(self) -> Verdict | None:
        return None if self.module is None else self.module.verdict

    @property
    def is_wrong(self) -> bool:
        """Whether a module was judged, and is not right."""
        return self.verdict is not None and not self.verdict.right

    @property
    def milliseconds(self) -> tuple[float, float] | None:
        """The module's and torch's in float32; None where nothing was timed."""
        return None if self.verdict is None else self.verdict.milliseconds

    @property
    def ratio(self) -> float | None:
        """Torch's time divided by the module's."""
        return None if self.verdict is None else self.verdict.ratio

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands in a table below HEADINGS."""
        if self.module is None:
            return (self.problem, f"refused: {self.refused}", *[""] * (len(HEADINGS) - 2))
        ours, torchs = self.milliseconds or (None, None)
        verdict = self.verdict
        said = "" if verdict is None else (verdict.precision or "") if verdict.right else "WRONG"
        ratio = "" if self.ratio is None else f"{self.ratio:.3f}"
        times = (_time(torchs), _time(self.compiled_ms), _time(ours))
        return (self.problem, self._fused, *times, ratio, said, self.module.left)

    @property
    def _fused(self) -> str:
        """What is ours."""
        assert self.module is not None
        if not self.module.multiplies:
            return self.module.fused or "nothing"
        count = len(self.module.plans)
        plans = "no plan" if count == 0 else "1 plan" if count == 1 else f"{count} plans"
        return f"{plans}; {self.module.fused}" if self.module.fused else plans


def _time(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.4f}"


@dataclass(frozen=True, slots=True)
class OptimizeAll:
    """How to write, and whether to judge."""

    gpu: Device
    folder: Path  # where modules go, under the problems' names
    accuracy: Accuracy
    judges: bool

    def __call__(self, problems: Sequence[Path], done: Callable[[Row], None]) -> list[Row]:
        """Writes the modules of problems, and gives the rows in their order. `done` is called with each as soon as it
        is there."""
        in_use = threading.Lock()

        def one(problem: Path) -> Row:
            row = self._row(problem, in_use)
            done(row)
            return row

        return at_once(one, problems, BUILDS if self.judges and is_here(self.gpu) else None)

    def _row(self, problem: Path, in_use: threading.Lock) -> Row:
        judge = partial(Judge, turn=in_use) if self.judges else None
        try:
            module = optimized(problem, self.folder / problem.name, self.gpu, self.accuracy, judge=judge)
        except ProblemError as error:
            return Row(problem.name, None, str(error))
        if module.verdict is None or module.verdict.speed is None:
            return Row(problem.name, module, "")
        with in_use:
            return Row(problem.name, module, "", compiled_time.milliseconds(problem))


def shown(rows: Sequence[Row]) -> list[int]:
    """The columns of a table of these rows: the first two, and where any has something."""
    return [i for i in range(len(HEADINGS)) if i < 2 or any(row.cells[i] for row in rows)]


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """What is there, and how fast it is."""
    yield f"{sum(row.module is not None for row in rows)} of {len(rows)} written"
    if judged := [row for row in rows if row.verdict is not None]:
        yield f"{sum(not row.is_wrong for row in judged)} of {len(judged)} right"
    multiplying = [row for row in rows if row.module is not None and row.module.multiplies]
    if ratios := [row.ratio for row in multiplying if row.ratio is not None]:
        mean = statistics.geometric_mean(ratios)
        yield f"with products: geometric mean {mean:.3f} of torch's speed, least {min(ratios):.3f}"
    pairs = [(row.compiled_ms, row.milliseconds[0]) for row in multiplying if row.compiled_ms and row.milliseconds]
    if pairs:
        mean = statistics.geometric_mean([compiled / ours for compiled, ours in pairs])
        yield f"and {mean:.3f} of that of torch.compile, of {len(pairs)}"
