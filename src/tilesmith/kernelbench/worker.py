"""The process that runs a problem's code: its name and text come from stdin, the answer goes to a file descriptor.

python -m tilesmith.kernelbench.worker DESCRIPTOR
"""

import json
import os
import sys
from typing import Any

from tilesmith.kernelbench.loading import UnsupportedError
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile
from tilesmith.kernelbench.recognize import recognize_here


def answer(problem: ProblemFile) -> dict[str, Any]:
    """What `recognize` makes a value or an error of."""
    try:
        return recognize_here(problem).to_dict()
    except UnsupportedError as error:
        return {"unsupported": str(error)}
    except ProblemError as error:
        return {"problem": str(error)}


def main() -> None:
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
