"""The rates that the cost models use, by device: data that was fitted on a GPU, from the files of `gpu_files`.

A GPU has the file whose name patterns fit its name. What that file lacks, or all of it where there is none, comes from
the file with the nearest compute capability: the nearest major version, then the nearest minor one. Today only the
H200's file has fitted rates, and every GPU uses them. docs/bench.md tells how to make a file.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, TypeVar

from tilesmith.core.device import Device
from tilesmith.core.gpu_files import GpuFile, gpu_files

T = TypeVar("T")

_sections: Final[dict[tuple[str, tuple[int, int], str], object]] = {}  # by a GPU's name and capability


@dataclass(frozen=True, slots=True)
class Clocks:
    """Table `clocks` of a GPU's rates."""

    per_us: float  # under load


def section(device: Device, name: str, kind: type[T]) -> T:
    """The table `name` of a device's rates as a dataclass. A table that lacks a field, or has another, is an error."""
    key = (device.name, device.capability, name)
    found = _sections.get(key)
    if not isinstance(found, kind):
        found = _sections[key] = pick(gpu_files(), *key, kind)
    return found


def stand_in(device: Device) -> str | None:
    """The GPU whose rates are used for a device that has none of its own; None if it has some.

    >>> from tilesmith.core.device import named
    >>> stand_in(named("t4")), stand_in(named("h200"))
    ('NVIDIA H200', None)
    """
    fitted = [file for file in gpu_files() if file.tables]
    nearest = min(fitted, key=lambda file: _distance(file, device.name, device.capability))
    return None if _is_of(nearest, device.name) else nearest.facts.name


def pick(files: tuple[GpuFile, ...], gpu: str, capability: tuple[int, int], name: str, kind: type[T]) -> T:
    """The table `name` of the file that is nearest to a GPU among those that have it."""
    for file in sorted(files, key=lambda file: _distance(file, gpu, capability)):
        rates = file.rates(name, kind)
        if rates is not None:
            return rates
    raise ValueError(f"no file of planner/rates has the table [{name}]")


def _distance(file: GpuFile, gpu: str, capability: tuple[int, int]) -> tuple[bool, int, int]:
    (major, minor), (its_major, its_minor) = capability, file.capability
    return not _is_of(file, gpu), abs(major - its_major), abs(minor - its_minor)


def _is_of(file: GpuFile, gpu: str) -> bool:
    return any(fnmatchcase(gpu, pattern) for pattern in file.facts.names)
