"""The official mode: KernelBench's own protocol, so that numbers can be compared, and what it cannot see."""

from typing import Final

import torch

from tilesmith.kernelbench.check import speed
from tilesmith.kernelbench.check.session import FailedError, LostReferenceError, Session
from tilesmith.kernelbench.check.verdict import Finding, Verdict

_TRIALS: Final = 5
_SEED: Final = 42
_BLIND: Final = (
    "five sets of inputs of one distribution and size, from a seed that everyone knows",
    "allclose with 1e-4 (1e-2 for 16-bit floats): lower precision than claimed passes where sums are large",
    "library calls, replaced functions, results kept from earlier calls and changed inputs are not looked for",
)


def judge(session: Session) -> Verdict:
    """Judges a candidate that has been built: five trials, then the mean of a hundred runs."""
    findings = [_trial(session, index, seed) for index, seed in enumerate(_seeds())]
    notes = [f"this mode cannot see: {each}" for each in _BLIND]
    timed = None
    if session.device == "cuda" and all(each.passed for each in findings):
        session.say("timing it beside torch")
        try:
            session.make(seed=_SEED)
            work = session.ask_reference("work")
            samples = session.time(["fp32"], official=True)["samples"]
            timed = speed.summarise(samples, work, "tf32", official=True)
        except (FailedError, LostReferenceError) as failed:
            findings.append(Finding("speed", False, str(failed)))
    return Verdict("official", tuple(findings), None, timed, tuple(notes))


def _seeds() -> list[int]:
    """The seeds of the trials, drawn from the protocol's one."""
    generator = torch.Generator().manual_seed(_SEED)
    return [int(torch.randint(0, 2**32 - 1, (1,), generator=generator).item()) for _ in range(_TRIALS)]


def _trial(session: Session, index: int, seed: int) -> Finding:
    name = f"trial {index + 1}"
    if not session.worker.is_alive:
        return Finding(name, None, "the candidate's process has ended")
    session.say(f"comparing: {name}")
    try:
        session.make(seed=seed)
        session.run("take")
        answer = session.ask_reference("allclose")
    except (FailedError, LostReferenceError) as failed:
        return Finding(name, False, str(failed))
    return Finding(name, "failed" not in answer, answer.get("failed", ""))
