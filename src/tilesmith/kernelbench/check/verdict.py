"""What was found about a candidate, for people and as JSON."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["strict", "official"]

# Findings by name: with the inputs of the problem itself, with others in sizes and in how they lie, and of all.
GIVEN: Final = ("given inputs", "given inputs, once more")
PRECISION: Final = "precision"
_FP32: Final = "fp32"
OTHER_FORMS: Final = ("stored by columns", "rows with gaps", "starts that are not aligned", "other sizes")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `passed` is None where it could not be tried, and `detail` says why."""

    name: str
    passed: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds of one competitor."""

    median: float
    lower: float  # a quarter of the rounds took less
    upper: float  # a quarter took more
    mean: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Times on the GPU, taken in turn, and what they mean."""

    candidate: Spread
    torch: dict[str, Spread]  # by precision class: fp32, and the candidate's own if that is another
    tflops: float  # of the products that the inputs' zeros leave
    roofline_ms: float | None  # no GPU of this kind can be faster; None where its peak is not known
    roofline_percent: float | None
    gpu: str
    state: str  # clocks and temperature, as nvidia-smi says


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one candidate.

    >>> print(Verdict("strict", (Finding("builds", True), Finding("inputs", False, "changed")), "fp32").describe())
    WRONG: inputs
      ok      builds
      FAILED  inputs: changed
      precision class: fp32
    """

    mode: Mode
    findings: tuple[Finding, ...]
    precision: str | None = None
    speed: Speed | None = None
    notes: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Nothing failed, and something was tried."""
        tried = [each.passed for each in self.findings if each.passed is not None]
        return bool(tried) and all(tried)

    @property
    def milliseconds(self) -> tuple[float, float] | None:
        """The candidate's and torch's in float32; None where nothing was timed."""
        if self.speed is None or _FP32 not in self.speed.torch:
            return None
        return self.speed.candidate.median, self.speed.torch[_FP32].median

    @property
    def ratio(self) -> float | None:
        """Torch's time divided by the candidate's."""
        return None if self.milliseconds is None else self.milliseconds[1] / self.milliseconds[0]

    def finding(self, name: str) -> Finding:
        """The finding of a name; KeyError if there is none."""
        for each in self.findings:
            if each.name == name:
                return each
        raise KeyError(name)

    def describe(self) -> str:
        """Some lines for a person."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self._headline()
        for each in self.findings:
            mark = {True: "ok", False: "FAILED", None: "not tried"}[each.passed]
            first, *rest = f"{each.name}{': ' if each.detail else ''}{each.detail}".splitlines()
            yield f"  {mark:<{9 if each.passed is None else 6}}  {first}"
            yield from textwrap.indent("\n".join(rest), " " * 10).splitlines()
        if self.precision:
            yield f"  precision class: {self.precision}"
        if self.speed:
            yield from _speed_lines(self.speed, official=self.mode == "official")
        for note in self.notes:
            yield f"  note: {note}"

    def _headline(self) -> str:
        """A kernel that is right for the inputs of the problem itself, and wrong for others, is told apart."""
        if self.right:
            return "RIGHT"
        failed = [each.name for each in self.findings if each.passed is False]
        passed = {each.name for each in self.findings if each.passed}
        others = [
            name for name in failed if name != PRECISION or self.precision != "worse"
        ]  # which is no more than they
        if passed >= {*GIVEN} and {*others} <= {*OTHER_FORMS}:
            return f"WRONG: right for the given sizes and strides, not for: {', '.join(others)}"
        return f"WRONG: {', '.join(failed)}"


def _speed_lines(speed: Speed, *, official: bool) -> Iterator[str]:
    def shown(spread: Spread) -> str:
        if official:
            return f"{spread.mean:.4f} ms (mean)"
        return f"{spread.median:.4f} ms ({spread.lower:.4f} to {spread.upper:.4f})"

    def time(spread: Spread) -> float:
        return spread.mean if official else spread.median

    yield f"  speed on {speed.gpu}: {shown(speed.candidate)}, {speed.tflops:.1f} TFLOP/s"
    for name, spread in speed.torch.items():
        yield f"    torch in {name}: {shown(spread)}, {time(spread) / time(speed.candidate):.2f} times the candidate's"
    if speed.roofline_ms is not None and speed.roofline_percent is not None:
        yield f"    roofline {speed.roofline_ms:.4f} ms, of which this is {speed.roofline_percent:.0f} %"
    yield f"    {speed.state}"
