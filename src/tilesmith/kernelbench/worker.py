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
    with os.fdopen(int(sys.argv[1]), "w") as file:
        json.dump(answer(ProblemFile(name, text)), file)
        file.flush()
        os._exit(0)  # threads and exit handlers of the user's file have no say in it


if __name__ == "__main__":
    main()
