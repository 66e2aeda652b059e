"""One call of the candidate under compute-sanitizer's memcheck, on small inputs."""

import shutil
from pathlib import Path
from typing import Final

from tilesmith.kernelbench.check.sandbox import DeadProcessError
from tilesmith.kernelbench.check.session import FailedError, LostReferenceError, Session
from tilesmith.kernelbench.check.verdict import Finding

NAME: Final = "memcheck"
_FOUND: Final = 86  # the exit status for errors that the tool found
_USUAL_PLACE: Final = Path("/usr/local/cuda/bin/compute-sanitizer")


def find() -> str | None:
    """The tool's path, or None."""
    return shutil.which("compute-sanitizer") or (str(_USUAL_PLACE) if _USUAL_PLACE.exists() else None)


def command(tool: str) -> list[str]:
    """What to put before a command to run it, but not the compilers that it starts, under the tool."""
    return [tool, "--tool", "memcheck", "--target-processes", "application-only", "--error-exitcode", str(_FOUND)]


def judge(session: Session) -> Finding:
    """Runs a candidate that was built in such a process once."""
    try:
        if session.ask_reference("unfit", kind="near", layout="smaller")["why"] is None:
            session.make("near", "smaller")
        else:
            session.make()
        session.run("take")
        status = session.worker.finish()
    except (FailedError, LostReferenceError, DeadProcessError) as failed:
        return Finding(NAME, False, "\n".join([str(failed), *_errors(session.worker.printed)]))
    errors = _errors(session.worker.printed)
    return Finding(NAME, status == 0 and not errors, "\n".join(errors) or f"exit status {status}" * (status != 0))


def _errors(printed: str) -> list[str]:
    """The first lines in which the tool says what is wrong.

    >>> _errors("========= COMPUTE-SANITIZER\\n========= Invalid __global__ read of size 4 bytes\\n")
    ['Invalid __global__ read of size 4 bytes']
    """
    lines = [line.removeprefix("=========").strip() for line in printed.splitlines() if line.startswith("=========")]
    return [line for line in lines if line.startswith(("Invalid", "Misaligned", "Program hit"))][:6]
