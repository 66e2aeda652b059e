"""What a program pays when it meets Tilesmith for the first time, beside what it pays for torch: one table.

    PYTHONPATH=src python3 scripts/first_contact.py --archive kernels.archive
    PYTHONPATH=src python3 scripts/first_contact.py --only training --only call --json first.json

Each figure is of a new process with an empty cache, torch's and ours alike: ours *cold*, where no kernel was compiled
ahead, and ours *with an archive* of `tilesmith build`: the one that is named, or else those that are installed.
Planning is measured once all kernels are loaded, so one column has it. With --rounds there are several processes for
each figure, whose median is shown. What was asked for stands beside what there is. A process that fails costs its own
figures, and the exit status.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
import torch
from first_contact_steps import PROGRAMS, Start
from rich.console import Console
from rich.table import Table

import tilesmith
from tilesmith.cli import format_kernels
from tilesmith.core import nvml
from tilesmith.core.device import installed
from tilesmith.kernels import catalogue
from tilesmith.runtime import archive

_STEPS: Final = Path(__file__).with_name("first_contact_steps.py")
_SOURCES: Final = Path(tilesmith.__file__).parents[1]
_MAX_SECONDS: Final = 200  # of a process
_DTYPES: Final = ("float32", "bfloat16")
_TITLES: Final = {
    "training": "a training step of 4 layers and a vocabulary of 50257",
    "lengths": "40 sequence lengths, no gradients",
    "rows": "150 row counts of (m x 4096) by (4096 x 4096)",
    "planning": "call to launch, kernels loaded",
    "call": "4096 x 4096 x 4096",
}
# Seconds that were asked for, by program and figure.
_ASKED_OF_PLANNING: Final = {
    ("planning", "rows, median"): 0.3e-3,
    ("planning", "rows, p99"): 1e-3,
    ("planning", "random shapes, median"): 0.3e-3,
    ("planning", "random shapes, p99"): 1e-3,
}
_ASKED_COLD: Final = {("training", "first step"): 10.0, ("call", "import and call"): 2.0, **_ASKED_OF_PLANNING}
_ASKED_WITH_ARCHIVE: Final = {("rows", "all row counts"): 0.15, **_ASKED_OF_PLANNING}
_ASKED_OF_FLOAT32: Final = {("training", "first step"): 1.0}  # with an archive
_NO_MORE_THAN_TORCH: Final = ("lengths", "all lengths")  # of float32 with an archive


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, in seconds. What was not measured, or not asked for, is None."""

    program: str
    dtype: str
    figure: str
    torch: float | None
    cold: float | None
    archived: float | None

    @property
    def asked_cold(self) -> float | None:
        return _ASKED_COLD.get((self.program, self.figure))

    @property
    def asked_archived(self) -> float | None:
        key = self.program, self.figure
        if self.dtype == "float32" and key == _NO_MORE_THAN_TORCH:
            return self.torch
        of_type = _ASKED_OF_FLOAT32.get(key) if self.dtype == "float32" else None
        return _ASKED_WITH_ARCHIVE.get(key) if of_type is None else of_type

    @property
    def is_over(self) -> bool:
        """Whether one of ours takes longer than was asked for."""
        pairs = (self.cold, self.asked_cold), (self.archived, self.asked_archived)
        return any(ours is not None and asked is not None and ours > asked for ours, asked in pairs)


@dataclass(frozen=True, slots=True)
class Kernels:
    """An archive that was measured with."""

    name: str
    kernels: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.name}, {format_kernels(self.kernels)}, {self.bytes:,} bytes"


@dataclass(frozen=True, slots=True)
class Measured:
    """All that a run has to tell."""

    gpu: str
    driver: str
    torch: str
    kernels: int  # that the catalogue has for this GPU
    archives: tuple[Kernels, ...]
    rows: tuple[Row, ...]

    def as_json(self) -> str:
        asked = [{"asked_cold": row.asked_cold, "asked_archived": row.asked_archived} for row in self.rows]
        rows = [{**asdict(row), **of_row} for row, of_row in zip(self.rows, asked, strict=True)]
        return json.dumps({**asdict(self), "rows": rows}, indent=1) + "\n"


@click.command()
@click.option("--archive", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Kernels.")
@click.option("--only", type=click.Choice(list(PROGRAMS)), multiple=True, help="A program; may be repeated.")
@click.option("--dtype", "dtypes", type=click.Choice(_DTYPES), multiple=True, default=_DTYPES, help="May be repeated.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="Processes for each figure.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows here.")
def main(
    file: Path | None, only: tuple[str, ...], dtypes: tuple[str, ...], rounds: int, json_file: Path | None
) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("this needs an NVIDIA GPU, and torch finds none")
    gpu = installed(0)
    archives = archives_of(gpu.arch, file)
    paths = tuple(str(each.path.resolve()) for each in archives)
    failures: list[str] = []
    rows: list[Row] = []
    for program in only or PROGRAMS:
        for dtype in dtypes:
            rows += measured(program, dtype, paths, rounds, failures)
    found = Measured(
        gpu=gpu.name,
        driver=nvml.driver_version(),
        torch=torch.__version__,
        kernels=len(catalogue(gpu)),
        archives=tuple(Kernels(each.path.name, len(each), each.path.stat().st_size) for each in archives),
        rows=tuple(rows),
    )
    if json_file is not None:
        json_file.write_text(found.as_json())
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table(rows))
    click.echo(
        f"{found.gpu}, driver {found.driver}, torch {found.torch}; {format_kernels(found.kernels)} in the catalogue"
    )
    click.echo("archives: " + ("; ".join(map(str, found.archives)) or "none; name one with --archive"))
    if failures:
        raise click.ClickException("; ".join(failures))


def archives_of(arch: str, file: Path | None) -> list[archive.Archive]:
    """The archives whose kernels are found: this one, or all that are installed."""
    try:
        found = archive.installed(arch) if file is None else [archive.Archive(file)]
    except archive.DamagedArchiveError as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from error
    current = [each for each in found if each.is_current and each.arch == arch]
    if file is not None and not current:
        raise click.ClickException(f"{file} was built of other sources, or for another architecture than {arch}")
    return current


def measured(program: str, dtype: str, archives: tuple[str, ...], rounds: int, failures: list[str]) -> Iterator[Row]:
    """The figures of one program: torch's, ours cold, and ours with archives. What fails is added to the failures."""

    def median(is_ours: bool, with_archives: tuple[str, ...] = ()) -> dict[str, float]:
        start = Start(program, dtype, is_ours, with_archives)
        try:
            return _median(start, rounds)
        except (ProcessError, subprocess.TimeoutExpired) as error:
            reason = f"more than {_MAX_SECONDS} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
            failures.append(f"{_described(start)}: {reason}")
            print(failures[-1], file=sys.stderr, flush=True)
            return {}

    theirs = median(is_ours=False)
    is_cold_too = program != "planning" or not archives
    cold = median(is_ours=True) if is_cold_too else {}
    archived = median(is_ours=True, with_archives=archives) if archives else {}
    for figure in dict.fromkeys([*theirs, *cold, *archived]):
        yield Row(program, dtype, figure, theirs.get(figure), cold.get(figure), archived.get(figure))


def _median(start: Start, rounds: int) -> dict[str, float]:
    """Of several processes."""
    found = []
    for _ in range(rounds):
        print(_described(start), file=sys.stderr, flush=True)
        found.append(seconds_of(start))
    return {figure: statistics.median(each[figure] for each in found) for figure in found[0]}


def _described(start: Start) -> str:
    who = f"ours {'with an archive' if start.archives else 'cold'}" if start.is_ours else "torch"
    return f"{start.program} {start.dtype}, {who}"


class ProcessError(Exception):
    """A process that did not end well, and the end of what it said."""


def seconds_of(start: Start) -> dict[str, float]:
    """What one new process measures, with an empty cache of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_SOURCES), os.environ.get("PYTHONPATH")])),
            "XDG_CACHE_HOME": folder,
            "CUDA_CACHE_DISABLE": "1",  # NVRTC has a cache of its own
        }
        command = [sys.executable, "-P", str(_STEPS), json.dumps(asdict(start))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_MAX_SECONDS)
    if done.returncode != 0:
        raise ProcessError(done.stderr.strip()[-1000:] or f"exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def table(rows: list[Row]) -> Table:
    """The rows as a person reads them."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("program", "type", "figure"):
        shown.add_column(heading)
    for heading in ("torch", "ours cold", "asked for", "with archive", "asked for"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column()
    for row in rows:
        seconds = (row.torch, row.cold, row.asked_cold, row.archived, row.asked_archived)
        cells = (row.dtype, row.figure, *map(format_seconds, seconds), "over" if row.is_over else "")
        shown.add_row(_TITLES[row.program], *cells, style="yellow" if row.is_over else None)
    return shown


def format_seconds(seconds: float | None) -> str:
    """
    >>> format_seconds(12.345), format_seconds(0.0123), format_seconds(None)
    ('12.35 s', '12.30 ms', '-')
    """
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 0.5 else f"{seconds * 1e3:.2f} ms"


if __name__ == "__main__":
    main()
