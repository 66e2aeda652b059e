"""What a problem computes, found out in a process of its own: the file may do anything while it is traced."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from tilesmith.kernelbench.exporting import exported
from tilesmith.kernelbench.expression import Expression, Input, Scalar, from_rows, nodes, to_rows
from tilesmith.kernelbench.guards import traced
from tilesmith.kernelbench.loading import UnsupportedError, load
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile
from tilesmith.kernelbench.show import show
from tilesmith.kernelbench.whole_model import WholeModel

_LINES: Final = 3  # of what a crashed file had to say


@dataclass(frozen=True, slots=True)
class Recognized:
    """A problem as far as it has to be known to write another file that computes the same."""

    expression: Expression  # in training, in which models are made
    evaluation: Expression  # the same one, unless forward asks for self.training
    inputs: tuple[Input | Scalar, ...]  # what get_inputs gives, in order

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        inputs = [to_rows(x) for x in self.inputs]
        return {"expression": to_rows(self.expression), "evaluation": to_rows(self.evaluation), "inputs": inputs}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Recognized":
        """The value of which `to_dict` made this."""
        inputs = tuple(x for x in map(from_rows, data["inputs"]) if isinstance(x, Input | Scalar))
        return cls(from_rows(data["expression"]), from_rows(data["evaluation"]), inputs)

    @property
    def multiplies(self) -> bool:
        """Whether any product in it is ours. What it does besides needs our kernels, too."""
        return True

    @property
    def nodes(self) -> list[Expression]:
        """The distinct nodes of both expressions, each after those that it is made of."""
        return list(dict.fromkeys([*nodes(self.expression), *nodes(self.evaluation)]))

    def describe(self) -> str:
        """What is computed, as a person writes it."""
        if self.evaluation is self.expression:
            return show(self.expression)
        return f"{show(self.expression)} in training, {show(self.evaluation)} in evaluation"


def recognize_here(problem: ProblemFile) -> Recognized | WholeModel:
    """What a problem computes: an expression if it is one of products, and else the operations of the whole model. This
    runs the file's code in this process."""
    loaded = load(problem)
    try:
        modes = traced(problem, loaded)
    except UnsupportedError:
        return exported(problem, load(problem))  # anew: nothing is left of what was tried
    return Recognized(modes.training, modes.evaluation, loaded.inputs)


def recognize(problem: ProblemFile, *, timeout: float = 120.0) -> Recognized | WholeModel:
    """What a problem computes, from a process that has `timeout` seconds for it.

    Whatever goes wrong there is a ProblemError, and an UnsupportedError for what cannot be written down.
    """
    package = str(resources.files("tilesmith"))
    path = os.pathsep.join(filter(None, [os.path.dirname(package), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as messages:
        text.write(json.dumps([problem.name, problem.text]).encode())
        text.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tilesmith.kernelbench.worker", str(answer.fileno()), str(os.getpid())],
            stdin=text,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            pass_fds=[answer.fileno()],
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ProblemError(f"{problem.name} has not finished after {timeout:g} seconds") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        answer.seek(0)
        messages.seek(0)
        return _answered(problem, answer.read(), status, messages.read().decode(errors="replace"))


def _answered(problem: ProblemFile, answer: bytes, status: int, messages: str) -> Recognized | WholeModel:
    try:
        found = json.loads(answer)
    except ValueError:
        end = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        lines = [line.strip() for line in messages.splitlines() if line.strip()]
        lines = lines[-1:] if any(line.startswith("Traceback") for line in lines) else lines[:_LINES]
        said = ": " + " | ".join(lines) if lines else ""
        raise ProblemError(f"{problem.name} ended the process before it was traced ({end}){said}") from None
    match found:
        case {"unsupported": str(message)}:
            raise UnsupportedError(message)
        case {"problem": str(message)}:
            raise ProblemError(message)
        case {"forward": _}:
            return WholeModel.from_dict(found)
        case _:
            return Recognized.from_dict(found)
