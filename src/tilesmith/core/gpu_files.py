"""The files of GPUs, `planner/rates/*.toml`: the facts of one GPU each, and the rates that were fitted on it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from tilesmith.core import package

FIT: Final[dict[str, type]] = {"fitted": date, "command": str, "note": str}  # of every table with fitted numbers
_FACTS: Final = "gpu"  # the table that every file has
_SUFFIX: Final = ".toml"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a GPU is: table `gpu` of its file. Not measured; `source` says where it is from."""

    name: str  # as the driver says it
    names: tuple[str, ...]  # patterns of the names that this file is for, as `fnmatch` reads them
    capability: tuple[int, ...]
    sm_count: int
    shared_kib_per_sm: int
    threads_per_sm: int
    l2_mib: int
    max_clock_hz: float
    memory_bytes_per_second: float
    source: str


@dataclass(frozen=True, slots=True)
class GpuFile:
    """One file."""

    key: str  # the GPU's short name, and the file's
    facts: Facts
    tables: Mapping[str, Any]  # the others

    @classmethod
    def parse(cls, key: str, text: str) -> "GpuFile":
        """The file of this name with this text."""
        tables = tomllib.loads(text)
        if _FACTS not in tables:
            raise ValueError(f"{key}{_SUFFIX} lacks the table [{_FACTS}]")
        facts = read(tables.pop(_FACTS), Facts, f"{key}{_SUFFIX} [{_FACTS}]")
        return cls(key, facts, tables)

    @property
    def capability(self) -> tuple[int, int]:
        major, minor = self.facts.capability
        return major, minor

    def table(self, section: str) -> dict[str, Any] | None:
        """The table of this dotted name; None if the file has none."""
        found: Any = self.tables
        for part in section.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found if isinstance(found, dict) else None

    def rates(self, section: str, kind: type[T]) -> T | None:
        """The fitted numbers of a table; None if the file has none."""
        table = self.table(section)
        where = f"{self.key}{_SUFFIX} [{section}]"
        return None if table is None else read(_without_fit(table, where), kind, where)


@cache
def gpu_files() -> tuple[GpuFile, ...]:
    """All files of the package: those with fitted rates first, then the newest architecture.

    >>> gpu_files()[0].key
    'h200'
    """
    folder = package.files() / "planner" / "rates"
    paths = (path for path in folder.iterdir() if path.name.endswith(_SUFFIX))
    files = (GpuFile.parse(path.name.removesuffix(_SUFFIX), path.read_text()) for path in paths)

    def rank(file: GpuFile) -> tuple[bool, int, int, str]:
        major, minor = file.capability
        return not file.tables, -major, -minor, file.key

    return tuple(sorted(files, key=rank))


def _without_fit(table: Mapping[str, Any], where: str, is_told: bool = False) -> dict[str, Any]:
    """The table without what it says of its fit, which it must say where it has numbers, or a table around it."""
    if FIT.keys() & table.keys() or not (is_told or all(isinstance(value, dict) for value in table.values())):
        for key, kind in FIT.items():
            if not isinstance(table.get(key), kind):
                raise ValueError(f"{where} must say {key!r}, a {kind.__name__}")
        is_told = True
    return {
        key: _without_fit(value, _inside(where, key), is_told) if isinstance(value, dict) else value
        for key, value in table.items()
        if key not in FIT
    }


def read(table: Mapping[str, Any], kind: type[T], where: str) -> T:
    """A table as a dataclass: a number or a text for each field, a table for each that is a dataclass or a mapping."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # T is a dataclass
    if missing := [name for name in names if name not in table]:
        raise ValueError(f"{where} lacks {', '.join(map(repr, missing))}")
    if unknown := [name for name in table if name not in names]:
        raise ValueError(f"{where} has {', '.join(map(repr, unknown))}, which is not known")
    values = {name: _value(table[name], hints[name], where, name) for name in names}
    try:
        return kind(**values)
    except ValueError as error:  # what the dataclass itself checks
        raise ValueError(f"{where}: {error}") from None


def _inside(where: str, name: str) -> str:
    return f"{where.removesuffix(']')}.{name}]"


def _value(found: Any, hint: Any, where: str, name: str) -> Any:
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(found, dict):
        return read(found, hint, _inside(where, name))
    if get_origin(hint) is Mapping and isinstance(found, dict):
        kind = get_args(hint)[1]
        return {key: _value(value, kind, _inside(where, name), key) for key, value in found.items()}
    if get_origin(hint) is tuple and isinstance(found, list):
        kind = get_args(hint)[0]
        return tuple(_value(value, kind, where, name) for value in found)
    if hint is float and isinstance(found, int | float) and not isinstance(found, bool):
        return float(found)
    if hint in (int, str) and type(found) is hint:
        return found
    raise ValueError(f"{where} has {found!r} for {name!r}, and not a {getattr(hint, '__name__', hint)}")
