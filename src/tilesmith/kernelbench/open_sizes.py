"""Which sizes of its arguments an exported forward leaves open, and what was decided by them.

torch notes every decision that it, or the file, has taken by a size. Where one comes out otherwise for other sizes, and
forward then calls something else, the written forward asks for it before it starts.
"""

import math
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils._sympy.printers import PythonPrinter

from tilesmith.kernelbench.rules import RefusalError

_ANY: Final = "None"

Place = tuple[int, int]  # an argument, and a dimension of it


@dataclass(frozen=True, slots=True)
class OpenSizes:
    """The sizes of the arguments of a program: numbers where it has them written down, and else symbols."""

    sizes: tuple[tuple[int | str, ...], ...]  # of each argument
    decisions: tuple[str, ...]  # in Python

    @classmethod
    def of(cls, program: ExportedProgram) -> "OpenSizes":
        given = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
        arguments = [given[name] for name in program.graph_signature.user_inputs if isinstance(name, str)]
        return cls(
            sizes=tuple(tuple(map(_named, x.shape)) for x in arguments),
            decisions=tuple(sorted(_decisions([n for x in arguments for n in x.shape if isinstance(n, torch.SymInt)]))),
        )

    def decided_otherwise(self, shapes: Sequence[Sequence[int]]) -> set[str]:
        """The decisions that do not hold for arguments of these shapes."""
        values: dict[str, int] = {}
        for sizes, shape in zip(self.sizes, shapes, strict=True):
            for size, number in zip(sizes, shape, strict=True):
                if isinstance(size, str):
                    values.setdefault(size, number)
        return {decision for decision in self.decisions if not _holds(decision, values)}

    def checks(self, names: Sequence[str], refused: Set[Place], decisive: Set[str]) -> list[str]:
        """Statements that ask for sizes that have to be as they were, or as another one is, and for these decisions.
        `refused`: places where forward itself takes no other size."""
        places: dict[str, str] = {}  # of the symbols
        statements = []
        for i, (name, sizes) in enumerate(zip(names, self.sizes, strict=True)):
            wanted = [_ANY] * len(sizes)
            for j, size in enumerate(sizes):
                if isinstance(size, int):
                    wanted[j] = str(size) if (i, j) not in refused else _ANY
                elif size in places:
                    wanted[j] = places[size] if (i, j) not in refused else _ANY
                else:
                    places[size] = f"{name}.size({j})"
            if any(x != _ANY for x in wanted):
                statements.append(f'_takes("{name}", {name}, [{", ".join(wanted)}])')
        for decision in sorted(decisive):
            text = re.sub(r"\b[A-Za-z_]\w*\b", lambda found: places.get(found[0], found[0]), decision)
            statements.append(f'_requires({text}, "{text}")')
        return statements


def _named(size: int | torch.SymInt) -> int | str:
    """A size as a number, which a symbol may turn out to be, or as the formula that it is."""
    if isinstance(size, int):
        return size
    number = size.node.maybe_as_int()
    return str(size.node.expr) if number is None else number


def _decisions(sizes: Sequence[torch.SymInt]) -> set[str]:
    """All that were taken by these sizes."""
    if not sizes:
        return set()
    environment = sizes[0].node.shape_env
    symbols = {x.node.expr for x in sizes if isinstance(x.node.expr, sympy.Symbol)}
    found = set()
    for decision in {environment.replace(guard.expr) for guard in environment.guards}:
        text = PythonPrinter().doprint(decision)
        if decision.free_symbols - symbols:
            raise RefusalError(f"a decision by {text}, which is no size of an argument,")
        if decision.free_symbols:
            found.add(text)
    return found


def _holds(decision: str, values: dict[str, int]) -> bool:
    try:
        return bool(eval(decision, {"math": math}, dict(values)))
    except ArithmeticError:
        return False
