"""The parent: starts the two processes, and judges a candidate in one of two modes."""

import secrets
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, Self

from tilesmith.kernelbench.check import official, sanitizer, strict, wire
from tilesmith.kernelbench.check.sandbox import DeadProcessError, Limits, Sandbox
from tilesmith.kernelbench.check.session import FailedError, Session
from tilesmith.kernelbench.check.verdict import Finding, Mode, Verdict
from tilesmith.kernelbench.problem_file import ProblemError

_REFERENCE: Final = "tilesmith.kernelbench.check.reference"
_WORKER: Final = "tilesmith.kernelbench.check.worker"
_OFFICIAL_SEED: Final = 42  # of the models' parameters; everyone knows it


class Judge:
    """One problem, and the process that holds its reference. Judges any number of candidates, one after the other.

    `with Judge("problem.py") as judge: print(judge("candidate.py").describe())`
    """

    def __init__(
        self,
        problem: str | Path,
        *,
        device: str = "cuda",
        limits: Limits | None = None,
        turn: AbstractContextManager[object] | None = None,
        say: Callable[[str], None] = lambda step: None,
    ) -> None:
        """`turn` is held while the device is in use, and not while a candidate builds: a lock lets several judges build
        at the same time. `say` is called with each step, for someone who waits."""
        self._turn = nullcontext() if turn is None else turn
        self._say = say
        self.problem = Path(problem).resolve()
        self._device = device
        self._limits = limits or Limits()
        self._temporary = tempfile.TemporaryDirectory(prefix="tilesmith-check-", ignore_cleanup_errors=True)
        self._folder = Path(self._temporary.name)
        self._reference = Sandbox(_REFERENCE, self._new_folder(), Limits())
        self._seed: int | None = None  # of the parameters that the reference has now
        self._unfit: dict[str, str] | None = None  # trials that it does not take, once it was asked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._reference.__exit__(*error)
        self._temporary.cleanup()

    def __call__(
        self, candidate: str | Path, *, mode: Mode = "strict", accuracy: str = "fp32", sanitize: bool = False
    ) -> Verdict:
        """Judges one candidate. `accuracy` is the class that float32 results must have, "fp32" or "tf32".
        ProblemError if the problem itself does not work."""
        path = Path(candidate).resolve()
        seed = _OFFICIAL_SEED if mode == "official" else secrets.randbits(62)
        with Sandbox(_WORKER, self._new_folder(), self._limits) as worker:
            self._load_reference(seed)
            unfit = {} if mode == "official" else self._unfit_trials()
            session = Session(self.problem, self._device, seed, self._reference, worker, self._say)
            built = self._build(session, path)
            if not built.passed:
                return Verdict(mode, (built,))
            with self._turn:
                judged = official.judge(session) if mode == "official" else strict.judge(session, accuracy, unfit)
        findings = (built, *judged.findings)
        if sanitize:
            findings += (self._sanitized(path, seed),)
        return Verdict(mode, findings, judged.precision, judged.speed, judged.notes)

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))

    def _load_reference(self, seed: int) -> None:
        if not self._reference.is_alive:  # a candidate may have ended it
            self._reference.__exit__()
            self._reference, self._seed = Sandbox(_REFERENCE, self._new_folder(), Limits()), None
        if self._seed == seed:
            return
        init = str(self._reference.folder / "init.pt")
        self._ask_reference("load", problem=str(self.problem), device=self._device, seed=seed, init=init)
        self._seed = seed

    def _unfit_trials(self) -> dict[str, str]:
        """The worker may import torch meanwhile, but has no candidate yet."""
        if self._unfit is None:
            with self._turn:
                self._unfit = strict.unfit_trials(
                    lambda kind, layout: self._ask_reference("unfit", kind=kind, layout=layout)["why"]
                )
        return self._unfit

    def _ask_reference(self, do: str, **arguments: Any) -> wire.Message:
        """Asks before there is a candidate: what goes wrong is the problem's fault."""
        try:
            answer = self._reference.ask(do, **arguments)
        except DeadProcessError as died:
            raise ProblemError(f"{self.problem.name}: {died}") from None
        if "raised" in answer:
            raise ProblemError(f"{self.problem.name}: {answer['raised']}")
        return answer

    def _build(self, session: Session, candidate: Path) -> Finding:
        session.say(f"building {candidate.name}")
        session.worker.wait_until_ready()
        init = session.worker.folder / "init.pt"
        shutil.copyfile(self._reference.folder / "init.pt", init)
        try:
            session.call(
                "load", candidate=str(candidate), device=self._device, seed=session.parameters_seed, init=str(init)
            )
        except FailedError as failed:
            return Finding("builds", False, str(failed))
        return Finding("builds", True)

    def _sanitized(self, candidate: Path, seed: int) -> Finding:
        tool = sanitizer.find()
        if tool is None:
            return Finding(sanitizer.NAME, None, "compute-sanitizer is not on the PATH")
        with Sandbox(_WORKER, self._new_folder(), self._limits, prefix=sanitizer.command(tool)) as worker:
            session = Session(self.problem, self._device, seed, self._reference, worker, self._say)
            built = self._build(session, candidate)
            session.say("running it under compute-sanitizer")
            return sanitizer.judge(session) if built.passed else Finding(sanitizer.NAME, False, built.detail)
