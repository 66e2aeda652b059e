"""A problem file: Python text that defines `Model`, `get_inputs` and `get_init_inputs`."""

import re
import symtable
import warnings
from dataclasses import dataclass
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Final

NAMES: Final = ("Model", "get_inputs", "get_init_inputs")


class ProblemError(ValueError):
    """A file is not a problem that can be loaded. The message says why, and where."""


@dataclass(frozen=True, slots=True)
class ProblemFile:
    """The text of a problem. It parses and binds the three names, or it cannot be made.

    >>> ProblemFile("empty.py", "x = 1")
    Traceback (most recent call last):
    tilesmith.kernelbench.problem_file.ProblemError: empty.py does not define Model, get_inputs, get_init_inputs
    """

    name: str  # as messages show it: the last part of its path
    text: str

    def __post_init__(self) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they are for those who run the file
                compile(self.text, self.name, "exec", dont_inherit=True)  # finds more than symtable does
                table = symtable.symtable(self.text, self.name, "exec")
        except SyntaxError as error:
            raise ProblemError(f"{self.name}:{error.lineno or 1}: not Python: {error.msg}") from None
        except ValueError as error:  # a NUL in the text
            raise ProblemError(f"{self.name}: not Python: {error}") from None
        bound = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
        if missing := [name for name in NAMES if name not in bound]:
            raise ProblemError(f"{self.name} does not define {', '.join(missing)}")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> "ProblemFile":
        """The problem in a file."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ProblemError(f"{path} cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ProblemError(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}") from None
        return cls(path.name, text)

    def line(self, number: int) -> str:
        """One line, counted from one, without its indentation; "" where there is none."""
        lines = self.text.splitlines()
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def shipped() -> tuple[ProblemFile, ...]:
    """The problems that come with the package, in order.

    >>> [problem.name for problem in shipped()][:2]
    ['01_square.py', '02_rectangular.py']
    """
    return tuple(ProblemFile.read(path) for path in problems_in(None))


def problems_in(folder: Path | None) -> list[Path]:
    """The problem files of a folder, in the order of their names, where 9 comes before 10; those that come with the
    package if there is none.

    >>> len(problems_in(None))
    18
    """
    own = Path(str(resources.files("tilesmith.kernelbench") / "problems"))
    return sorted((own if folder is None else folder).glob("[!_]*.py"), key=_by_number)


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Numbers by their value, and what is between them by its letters."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]
