"""The strict mode: inputs that nobody can know before, every element against float64, and no trust in the rest."""

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tilesmith.bench import precision
from tilesmith.core.package import NAMESPACE
from tilesmith.kernelbench.check import speed, wire
from tilesmith.kernelbench.check.analysis import LIBRARY_PRODUCTS
from tilesmith.kernelbench.check.inputs import NOT_FINITE
from tilesmith.kernelbench.check.session import FailedError, LostReferenceError, Session, UnfitError
from tilesmith.kernelbench.check.verdict import GIVEN, OTHER_FORMS, PRECISION, Finding, Speed, Verdict
from tilesmith.kernelbench.problem_file import ProblemError

OWN_KERNELS: Final = "no library's product"
NOTHING_KEPT: Final = "nothing kept from earlier calls"
UNTOUCHED: Final = "torch and clocks as they were"
L2_UNTOUCHED: Final = "L2 as it was"
POSSIBLE: Final = "speed is possible"

# Names of the kernels of cuBLAS and cuDNN. A candidate's own kernel may well have "gemm" in its name.
_LIBRARY_KERNEL: Final = re.compile(
    r"cublas|cudnn|nvjet|xmma_|cutlass_\d+_|cutlass__5x_|implicit_convolve|gemmSN_|gemmk1|gemv2[TN]|gemvNSP|dot_kernel"
    r"|(volta|turing|ampere|hopper|sm\d+)_\w*gemm",
    re.IGNORECASE,
)
_TRACED: Final = dict.fromkeys(
    ("fresh operations", "again operations", "fresh kernels", "again kernels"), wire.is_texts
)
_PACE_CALLS: Final = 20
_PACE_FACTOR: Final = 5.0  # the parent's clock may say this many times the events' time, and
_PACE_SLACK: Final = 1.0  # milliseconds more a call, before it is a contradiction


@dataclass(frozen=True, slots=True)
class Trial:
    """One set of inputs: values of a kind, in a layout."""

    name: str
    kind: str = "given"
    layout: str | None = None


_FIRST: Final = tuple(map(Trial, GIVEN))
_REST: Final = (
    Trial("normal", "normal"),
    Trial("zeros and ones", "zeros and ones"),
    Trial("large", "large"),
    Trial("few terms", "few terms"),
    # The last of them kills what has its sizes built in.
    *(
        Trial(name, "near", layout)
        for name, layout in zip(OTHER_FORMS, ("transposed", "padded", "shifted", "smaller"), strict=True)
    ),
)


def unfit_trials(why: Callable[[str, str | None], str | None]) -> dict[str, str]:
    """The trials whose inputs the reference does not take, each with the reason. `why` asks the reference, before there
    is a candidate. ProblemError if it does not even take the given ones."""
    found = {trial.name: reason for trial in (*_FIRST, *_REST) if (reason := why(trial.kind, trial.layout)) is not None}
    for trial in _FIRST:
        if trial.name in found:
            raise ProblemError(found[trial.name])
    return found


def judge(session: Session, accuracy: str, unfit: Mapping[str, str]) -> Verdict:
    """Judges a candidate that has been built. `accuracy` is the class that float32 results must have, and `unfit` are
    the trials that the reference does not take."""
    strict = _Strict(session, accuracy, unfit)
    for trial in _FIRST:
        strict.try_(trial)
    strict.trace()
    for trial in _REST:
        strict.try_(trial)
    strict.look_at_the_process()
    found = strict.judge_precision()
    if session.device == "cuda" and all(each.passed is not False for each in strict.findings):
        strict.time(found)
    strict.try_not_finite()
    return Verdict("strict", tuple(strict.findings), found, strict.speed, strict.notes)


class _Strict:
    def __init__(self, session: Session, accuracy: str, unfit: Mapping[str, str]) -> None:
        self.findings: list[Finding] = []
        self.speed: Speed | None = None
        self._session = session
        self._accuracy = accuracy
        self._unfit = unfit
        self._moving: list[str] = []  # trials whose results are right, and not the same in each call
        self._is_by_us = False  # the candidate calls this package
        self._not_finite = ""  # what is other than torch's where inputs are infinities and NaNs
        self._measured: dict[str, dict[str, Any]] = {}  # by trial

    def _note(self, name: str, passed: bool | None, detail: str = "") -> None:
        self.findings.append(Finding(name, passed, detail))

    @property
    def notes(self) -> tuple[str, ...]:
        found = []
        if self._moving:
            found.append(f"results move from call to call, and are right each time: {', '.join(self._moving)}")
        if self._is_by_us:
            found.append("it calls Tilesmith, whose kernels they are: not a library's, nor the candidate's own")
        if self._not_finite:
            found.append(f"infinities and NaNs among the inputs come out otherwise than torch's: {self._not_finite}")
        return tuple(found)

    def try_(self, trial: Trial) -> None:
        """Two calls on the same inputs, both against float64."""
        if reason := self._unfit.get(trial.name):
            return self._note(trial.name, None, reason)
        if not self._session.worker.is_alive:
            return self._note(trial.name, None, "the candidate's process has ended")
        self._session.say(f"comparing: {trial.name}")
        try:
            found, is_same = self._compared(trial.kind, trial.layout)
            self._measured[trial.name] = found
            self._judge_error(trial, found)
        except UnfitError as unfit:
            return self._note(trial.name, None, str(unfit))
        except (FailedError, LostReferenceError) as failed:
            return self._note(trial.name, False, str(failed))
        if not is_same:
            self._moving.append(trial.name)
        return self._note(trial.name, True, _measured(found))

    def _compared(self, kind: str, layout: str | None = None) -> tuple[dict[str, Any], bool]:
        """What the reference says of two calls on inputs of a kind, and whether their results are the same."""
        self._session.make(kind, layout)
        self._session.run("take")
        repeated = self._session.run("take_again")
        found = self._session.ask_reference("compare")
        if "unfit" in found:
            raise UnfitError(found["unfit"])
        if "failed" in found:
            raise FailedError(found["failed"])
        return found, bool(repeated["same"])

    def try_not_finite(self) -> None:
        """What comes of infinities and NaNs. No candidate is wrong for that: products in terms have others."""
        if not self._session.worker.is_alive:
            return
        self._session.say("comparing: infinities and NaNs")
        try:
            found, _ = self._compared(NOT_FINITE)
        except UnfitError:
            return
        except (FailedError, LostReferenceError) as failed:
            self._not_finite = str(failed)
            return
        if found["class"] == "worse" and not math.isnan(found["own_error"]):
            self._not_finite = _measured(found)

    def _judge_error(self, trial: Trial, found: dict[str, Any]) -> None:
        if found.get("not_finite"):
            raise FailedError(f"{found['not_finite']} elements are not finite")
        if trial.kind == "zeros and ones" and found.get("is_product") and found["own_error"] == 0 < found["error"]:
            raise FailedError(f"sums of zeros and ones are not exact, as torch's are: error {found['error']:.1e}")
        if found["class"] == "worse":
            raise FailedError(f"wrong: {_measured(found)}")

    def trace(self) -> None:
        """What runs in a call, and what runs when the same values come again."""
        try:
            self._session.make("near")
            seen = self._session.call("trace", _TRACED, inputs=str(self._session.inputs))
        except (FailedError, LostReferenceError) as failed:
            return self._note(OWN_KERNELS, False, str(failed))
        self._is_by_us = any(name.startswith(f"{NAMESPACE}::") for name in seen["fresh operations"])
        library = sorted(set(seen["fresh operations"]) & LIBRARY_PRODUCTS)
        library += sorted({name for name in seen["fresh kernels"] if _LIBRARY_KERNEL.search(name)})
        if library:
            self._note(OWN_KERNELS, False, f"a call runs {', '.join(library)}")
        elif self._session.device == "cuda" and not seen["fresh kernels"]:
            self._note(OWN_KERNELS, None, "the profiler sees no kernel run")
        else:
            self._note(OWN_KERNELS, True)
        for what in ("operations", "kernels"):
            fresh, again = len(seen[f"fresh {what}"]), len(seen[f"again {what}"])
            if again < fresh:
                detail = f"{fresh} {what} for new values, and {again} when the same come again"
                return self._note(NOTHING_KEPT, False, detail)
        return self._note(NOTHING_KEPT, True)

    def look_at_the_process(self) -> None:
        """What the candidate has left behind in its process."""
        if not self._session.worker.is_alive:
            return self._note(UNTOUCHED, None, "the candidate's process has ended")
        try:
            state = self._session.call("state", {"changed": wire.is_texts, "persisting_l2": wire.is_whole})
        except FailedError as failed:
            return self._note(UNTOUCHED, False, str(failed))
        changed = state["changed"]
        self._note(UNTOUCHED, not changed, f"replaced: {', '.join(changed[:8])}" if changed else "")
        if self._session.device == "cuda":
            left = state["persisting_l2"]
            self._note(L2_UNTOUCHED, left == 0, f"{left:+} bytes are set aside for persisting accesses" * bool(left))
        return None

    def judge_precision(self) -> str | None:
        """The worst class of all inputs, which must be that of the results' type or the one that was asked for."""
        classes = {name: found["class"] for name, found in self._measured.items() if found["class"]}
        if not classes:
            return None
        others = [each for name, each in classes.items() if name != "large"]
        lost_by_range = self._measured.get("large", {}).get("not_finite") and others
        if lost_by_range and precision.keeps(precision.worst(others), "tf32"):
            classes["large"] = "fp16"  # the precision of TF32, without its range
        found = precision.worst(list(classes.values()))
        required = precision.worst([each["required"] for each in self._measured.values() if each["class"]])
        required = self._accuracy if required == "fp32" else required
        passed = precision.keeps(found, required)
        where = [name for name, each in classes.items() if each == found]
        detail = "" if passed else f"the results are of class {found}, not {required} ({', '.join(where)})"
        self._note(PRECISION, passed, detail)
        return found

    def time(self, found: str | None) -> None:
        """Times beside torch, and whether they can be."""
        classes = ["fp32", *({found or "fp32"} & {"tf32", "fp16", "bf16"})]
        session = self._session
        session.say("timing it beside torch")
        try:
            session.make()
            work = session.ask_reference("work")
            timed = session.time(classes, official=False)
            pace_ms = self._pace_ms()
        except (FailedError, LostReferenceError) as failed:
            return self._note(POSSIBLE, False, str(failed))
        self.speed = speed.summarise(timed["samples"], work, found or "fp32", official=False)
        impossible = None
        if timed["changed"]:
            impossible = f"replaced while it was timed: {', '.join(timed['changed'][:8])}"
        elif self.speed.roofline_percent is not None and self.speed.roofline_percent > 100:
            impossible = f"faster than the roofline of {self.speed.roofline_ms:.4f} ms"
        elif pace_ms > _PACE_FACTOR * self.speed.candidate.median + _PACE_SLACK:
            impossible = f"a call takes {pace_ms:.3f} ms by the judge's own clock"
        return self._note(POSSIBLE, impossible is None, impossible or "")

    def _pace_ms(self) -> float:
        """Milliseconds a call by this process's clock: the difference of a longer and a shorter row of calls."""
        seconds = []
        for calls in (_PACE_CALLS, 2 * _PACE_CALLS):
            start = time.perf_counter()
            self._session.call("pace", calls=calls)
            seconds.append(time.perf_counter() - start)
        return 1e3 * (seconds[1] - seconds[0]) / _PACE_CALLS


def _measured(found: dict[str, Any]) -> str:
    if found["class"] is None:
        return "the same integers"
    return f"error {found['error']:.1e}, torch's {found['own_error']:.1e}, K = {found['k']}: class {found['class']}"
