"""The process that runs a problem's code: its name and text come from stdin, the answer goes to a file descriptor.

python -m tilesmith.kernelbench.worker DESCRIPTOR PARENT

It ends with the process that started it, however that ends.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any, Final

from tilesmith.kernelbench.loading import UnsupportedError
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile
from tilesmith.kernelbench.recognize import recognize_here

_PR_SET_PDEATHSIG: Final = 1


def end_with(parent: int) -> None:
    """From now on this process is killed when its parent, which has this id, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def answer(problem: ProblemFile) -> dict[str, Any]:
    """What `recognize` makes a value or an error of."""
    try:
        return recognize_here(problem).to_dict()
    except UnsupportedError as error:
        return {"unsupported": str(error)}
    except ProblemError as error:
        return {"problem": str(error)}


def main() -> None:
    end_with(int(sys.argv[2]))
    name, text = json.load(sys.stdin)
    found = json.dumps(answer(ProblemFile(name, text))).encode()
    try:
        with os.fdopen(int(sys.argv[1]), "wb") as file:
            file.write(found)
    except OSError as error:
        sys.stderr.write(f"the answer cannot be written: {error.strerror}\n")
        os._exit(1)
    os._exit(0)  # threads and exit handlers of the file have no say in it


if __name__ == "__main__":
    main()
