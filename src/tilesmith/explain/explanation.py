"""A plan as a person reads it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tilesmith.core.accuracy import ACCURACIES
from tilesmith.core.numbers import count, fitting, paragraph, quantity
from tilesmith.core.plan import Plan, Rejection
from tilesmith.core.problem import EpilogueSpec
from tilesmith.core.roofline import Peak
from tilesmith.explain.estimate import Estimate
from tilesmith.explain.launches import Launch
from tilesmith.explain.promises import Promises
from tilesmith.explain.tiles import Tiles
from tilesmith.explain.waves import Waves
from tilesmith.explain.work import Work

_MAX_ALTERNATIVES: Final = 10  # that the text shows


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a product would be done on a GPU, and why so. `str()` of it is the text; every field is plain data."""

    product: str  # e.g. "8205 x 2949 x 5921 float32"
    epilogue: tuple[str, ...]  # what follows it in the same kernels, e.g. "a bias", "gelu"
    gpu: str
    arch: str
    notes: tuple[str, ...]  # what must be known to read the rest
    work: Work
    plan: str  # its name
    launches: tuple[Launch, ...]
    workspace_bytes: int
    tiles: Tiles
    waves: Waves
    estimate: Estimate
    promises: Promises
    alternatives: tuple[Rejection, ...]  # what lost, the nearest first; then what was not compared

    @classmethod
    def of(cls, plan: Plan, rejections: Iterable[Rejection], notes: Iterable[str] = ()) -> "Explanation":
        """The explanation of a plan that multiplies. `rejections`: what was not taken."""
        assert plan.tiling is not None
        peak = Peak.of(plan.device)
        work, tiles = Work.of(plan, peak), Tiles.of(plan, plan.tiling)
        return cls(
            product=str(plan.problem),
            epilogue=_parts(plan.problem.epilogue),
            gpu=plan.device.name,
            arch=plan.device.arch,
            notes=tuple(notes),
            work=work,
            plan=plan.name,
            launches=tuple(Launch.of(launch, plan) for launch in plan.launches),
            workspace_bytes=plan.workspace_bytes,
            tiles=tiles,
            waves=Waves.of(plan, plan.tiling, tiles.tiles),
            estimate=Estimate.of(plan, peak, work),
            promises=Promises.of(plan),
            alternatives=_nearest_first(rejections),
        )

    def __str__(self) -> str:
        return "\n".join(fitting(self._lines()))

    def _lines(self) -> Iterator[str]:
        accuracy = f" as {self.work.precision}" if self.work.precision in ACCURACIES else ""
        yield f"{self.product}{accuracy} on {self.gpu} ({self.arch})"
        if self.epilogue:
            yield f"  with {', '.join(self.epilogue)} in its kernels"
        for note in self.notes:
            yield from paragraph(note)
        yield from ("", "The work")
        yield from self.work.lines()
        yield from ("", f"The plan: {self.plan}")
        for number, launch in enumerate(self.launches, 1):
            yield from launch.lines(number)
        if self.workspace_bytes:
            yield f"  workspace: {quantity(self.workspace_bytes, 'B')}"
        yield from ("", "The tiles")
        yield from self.tiles.lines()
        yield from ("", "The waves")
        yield from self.waves.lines()
        clock_hz = self.estimate.clock_hz
        clock = "" if clock_hz is None else f", at {clock_hz / 1e9:.2f} GHz"
        yield from ("", f"The time, as the cost model estimates it{clock}")
        yield from self.estimate.lines()
        yield from ("", "The result")
        yield from self.promises.lines()
        if self.alternatives:
            yield from ("", "Not taken")
            yield from self._not_taken()

    def _not_taken(self) -> Iterator[str]:
        for each in self.alternatives[:_MAX_ALTERNATIVES]:
            yield from paragraph(f"{each.candidate}: {each.reason}", indent="    ")
        more = len(self.alternatives) - _MAX_ALTERNATIVES
        if more > 0:
            yield f"  and {count(more, 'other')}"


def _parts(epilogue: EpilogueSpec | None) -> tuple[str, ...]:
    if epilogue is None:
        return ()
    parts = {
        "factors": epilogue.is_scaled,
        "a bias": epilogue.bias is not None,
        str(epilogue.activation): epilogue.activation is not None,
        "a residual": epilogue.residual is not None,
    }
    return tuple(part for part, holds in parts.items() if holds)


def _nearest_first(rejections: Iterable[Rejection]) -> tuple[Rejection, ...]:
    return tuple(sorted(rejections, key=lambda each: (each.cycles is None, each.cycles or 0.0)))
