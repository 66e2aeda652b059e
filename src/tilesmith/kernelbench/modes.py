"""One text of a forward that is traced in training and in evaluation."""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final

_FLAG: Final = re.compile(r"\b(True|False)\b")
_MODE: Final = "self.training"
_INDENT: Final = "    "


def merged(training: Sequence[str], evaluation: Sequence[str]) -> list[str]:
    """Statements that do in either mode what each of these does in its own: where they differ in flags alone, a flag
    is the mode; what only one of them has is asked for; and where that does not do, there are two branches.

    >>> merged(["x = drop(x, 0.5, True)", "return x"], ["x = drop(x, 0.5, False)", "return x"])
    ['x = drop(x, 0.5, self.training)', 'return x']
    >>> merged(["count(self.n)", "return x"], ["return x"])
    ['if self.training:', '    count(self.n)', 'return x']
    """
    try:
        return list(_merged(training, evaluation))
    except _OtherwiseError:
        return [f"if {_MODE}:", *(_INDENT + line for line in training), *evaluation]


class _OtherwiseError(Exception):
    """The two have no common text."""


def _merged(training: Sequence[str], evaluation: Sequence[str]) -> Iterator[str]:
    plain = [[_FLAG.sub("?", line) for line in text] for text in (training, evaluation)]
    for kind, i, i_end, j, j_end in SequenceMatcher(None, plain[0], plain[1], autojunk=False).get_opcodes():
        if kind == "equal":
            for line, other in zip(training[i:i_end], evaluation[j:j_end], strict=True):
                yield line if line == other else _with_mode(line, other)
            continue
        for mode, lines in ((_MODE, training[i:i_end]), (f"not {_MODE}", evaluation[j:j_end])):
            if any(_binds(line) for line in lines):
                raise _OtherwiseError  # what follows would have to know under which name
            for line in lines:
                yield f"if {mode}:"
                yield _INDENT + line


def _with_mode(training: str, evaluation: str) -> str:
    flags = iter(_FLAG.findall(evaluation))

    def chosen(found: re.Match[str]) -> str:
        if found[0] == next(flags):
            return str(found[0])
        return _MODE if found[0] == "True" else f"not {_MODE}"

    return _FLAG.sub(chosen, training)


def _binds(line: str) -> bool:
    return re.match(r"\w+ = |return\b", line) is not None
