"""A candidate's process and the reference's, together: what both modes do with them."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tilesmith.kernelbench.check import wire
from tilesmith.kernelbench.check.sandbox import DeadProcessError, Sandbox

_NOTHING: Final[Mapping[str, wire.Kind]] = MappingProxyType({})
_NOT_THE_WORKERS: Final = "its process gave an answer that is not the worker's"


class FailedError(Exception):
    """The candidate did something wrong; the message says what."""


class UnfitError(Exception):
    """The reference itself does not take such inputs, so that nothing follows for the candidate."""


class LostReferenceError(Exception):
    """The reference cannot say what is right, as it could before there was a candidate."""


@dataclass(frozen=True, slots=True)
class Session:
    """The two processes, one problem, and the seed of the models' parameters."""

    problem: Path
    device: str
    parameters_seed: int
    reference: Sandbox
    worker: Sandbox
    say: Callable[[str], None]  # what is being done, for someone who waits

    @property
    def inputs(self) -> Path:
        """Where the candidate's process finds its inputs."""
        return self.worker.folder / "inputs.pt"

    def call(self, do: str, want: Mapping[str, wire.Kind] = _NOTHING, **arguments: Any) -> wire.Message:
        """Asks the candidate's process for an answer that has certain parts, each of a kind. FailedError for an error,
        after which the process is ended if the error is one that a CUDA context does not survive, and for a process
        that died."""
        try:
            answer = self.worker.ask(do, **arguments)
        except DeadProcessError as died:
            raise FailedError(str(died)) from None
        if "raised" in answer:
            if "CUDA error" in str(answer["raised"]):
                self.worker.kill()
            raise FailedError(wire.first_useful_lines(str(answer["raised"])))
        if not all(name in answer and is_right(answer[name]) for name, is_right in want.items()):
            raise FailedError(_NOT_THE_WORKERS)
        return answer

    def ask_reference(self, do: str, **arguments: Any) -> wire.Message:
        """Asks the reference's process. LostReferenceError for an error: it was tried without the candidate."""
        try:
            answer = self.reference.ask(do, **arguments)
        except DeadProcessError as died:
            raise LostReferenceError(f"the reference's process ended: {died}") from None
        if "raised" in answer:
            raise LostReferenceError(f"the reference failed: {answer['raised']}")
        return answer

    def make(self, kind: str = "given", layout: str | None = None, seed: int | None = None) -> None:
        """Fresh inputs for the candidate, by default from a seed that nobody knows."""
        seed = secrets.randbits(62) if seed is None else seed
        self.ask_reference("make", kind=kind, layout=layout, seed=seed, path=str(self.inputs))

    def time(self, classes: Sequence[str], *, official: bool) -> wire.Message:
        """Times beside torch's models of these classes, on the inputs: "samples", and what was "changed" meanwhile."""
        answer = self.call(
            *("time", {"samples": wire.are_times, "changed": wire.is_texts}),
            problem=str(self.problem),
            seed=self.parameters_seed,
            inputs=str(self.inputs),
            classes=list(classes),
            official=official,
        )
        if answer["samples"].keys() != {"candidate", *classes}:
            raise FailedError(_NOT_THE_WORKERS)
        return answer

    def run(self, take: str) -> wire.Message:
        """Calls the candidate on the inputs. The reference then takes what came out, by its function of that name, into
        memory of its own; its answer."""
        outputs = self.worker.folder / "outputs.pt"
        answer = self.call("run", {"types": wire.is_texts}, inputs=str(self.inputs), outputs=str(outputs))
        if answer["types"]:
            raise FailedError(f"returned {', '.join(answer['types'])} instead of torch.Tensor")
        try:
            answer = self.reference.ask(take, path=str(outputs))
        except DeadProcessError as died:
            raise LostReferenceError(f"the reference's process ended: {died}") from None
        finally:
            outputs.unlink(missing_ok=True)
        if "raised" in answer:
            raise FailedError(f"its results cannot be read: {answer['raised']}")
        return answer
