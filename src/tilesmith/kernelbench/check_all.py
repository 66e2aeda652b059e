"""Every problem of a folder: its module, written if it is not there, and what the judge says of it."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.core.threads import at_once
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.check.sandbox import Limits
from tilesmith.kernelbench.check.verdict import Mode, Verdict
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile
from tilesmith.kernelbench.recognize import recognize
from tilesmith.kernelbench.write import plan_of, written

BUILDS: Final = 9  # at the same time; the GPU takes one at a time
_NO_PRODUCT: Final = "elementwise"


@dataclass(frozen=True, slots=True)
class Checked:
    """One problem and the judgement of its module."""

    problem: str
    plan: str  # of the costliest product; "" for a module that was there already
    verdict: Verdict | None  # None if there is no module
    refused: str  # why not
    seconds: float

    @property
    def right(self) -> bool:
        return self.verdict is not None and self.verdict.right

    @property
    def ratio(self) -> float | None:
        """Torch's time divided by the module's."""
        return None if self.verdict is None else self.verdict.ratio

    def __str__(self) -> str:
        row = f"{self.problem:28} {self.plan:40}"
        if self.verdict is not None and self.verdict.milliseconds is not None:
            ours, torchs = self.verdict.milliseconds
            row += f" {ours:9.4f} ms  torch {torchs:9.4f}  ratio {torchs / ours:.3f}  {self.verdict.precision}"
        said = "" if self.right else f"\n{self.refused if self.verdict is None else self.verdict.describe()}"
        return f"{row}  ({self.seconds:.0f} s){said}"


@dataclass(frozen=True, slots=True)
class CheckAll:
    """How to check."""

    device: Device
    modules: Path  # where modules are; one of the problem's name that is there is judged as it is
    mode: Mode
    accuracy: Accuracy
    limits: Limits

    def __call__(self, problems: Sequence[Path], done: Callable[[Checked], None]) -> list[Checked]:
        """Judges the modules of problems, in their order. `done` is called with each as soon as it is there."""
        gpu = threading.Lock()

        def one(problem: Path) -> Checked:
            checked = self._checked(problem, gpu)
            done(checked)
            return checked

        return at_once(one, problems, BUILDS)

    def _checked(self, problem: Path, gpu: threading.Lock) -> Checked:
        start = time.perf_counter()
        module = self.modules / problem.name
        plan, verdict, refused = "", None, ""
        try:
            if not module.exists():
                plan = self._write(problem, module)
            with Judge(problem, limits=self.limits, turn=gpu) as judge:
                verdict = judge(module, mode=self.mode, accuracy=self.accuracy)
        except ProblemError as error:
            refused = str(error)
        return Checked(problem.name, plan, verdict, refused, time.perf_counter() - start)

    def _write(self, problem: Path, module: Path) -> str:
        """Writes a module as `tilesmith optimize` does. Returns the name of its plan."""
        file = ProblemFile.read(problem)
        recognized = recognize(file)
        module.write_text(written(file, recognized, self.device, self.accuracy))
        plan = plan_of(recognized, self.device, self.accuracy)
        return _NO_PRODUCT if plan is None else plan.name


def summary(every: Sequence[Checked]) -> Iterator[str]:
    """How many are right, and how fast they are."""
    yield f"{sum(each.right for each in every)} of {len(every)} are right"
    ratios = [(each.plan, each.ratio) for each in every if each.ratio is not None]
    if products := [ratio for plan, ratio in ratios if plan != _NO_PRODUCT]:
        yield f"products: geometric mean {statistics.geometric_mean(products):.3f} of torch's speed"
    if ratios:
        yield f"least of all: {min(ratio for _, ratio in ratios):.3f}"
