"""What a program pays when it meets Tilesmith for the first time, beside what it pays for torch: one table.

    PYTHONPATH=src python3 scripts/first_contact.py --archive kernels.archive
    PYTHONPATH=src python3 scripts/first_contact.py --only training --only call --json first.json

Each figure is of a new process with an empty cache, torch's and ours alike: ours *cold*, where no kernel was compiled
ahead, and ours *with an archive* of `tilesmith build`: the one that is named, or else those that are installed.
Planning is measured once all kernels are loaded, so one column has it. With --rounds there are several processes for
each figure, whose median is shown.
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
from tilesmith.core import nvml
from tilesmith.core.device import installed
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
_ASKED: Final = {
    ("planning", "rows, median"): 0.3e-3,
    ("planning", "rows, p99"): 1e-3,
    ("planning", "random shapes, median"): 0.3e-3,
    ("planning", "random shapes, p99"): 1e-3,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, in seconds. What was not measured is None."""

    program: str
    dtype: str
    figure: str
    torch: float | None
    cold: float | None
    archived: float | None
    asked: float | None


@click.command()
@click.option("--archive", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Kernels.")
@click.option("--only", type=click.Choice(list(PROGRAMS)), multiple=True, help="A program; may be repeated.")
@click.option("--dtype", "dtypes", type=click.Choice(_DTYPES), multiple=True, default=_DTYPES, help="May be repeated.")
@click.option("--rounds", default=1, show_default=True, help="Processes for each figure.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows here.")
def main(
    file: Path | None, only: tuple[str, ...], dtypes: tuple[str, ...], rounds: int, json_file: Path | None
) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("this needs an NVIDIA GPU, and torch finds none")
    gpu = installed(0)
    archives = archives_of(gpu.arch, file)
    rows: list[Row] = []
    for program in only or PROGRAMS:
        for dtype in dtypes:
            rows += measured(program, dtype, archives, rounds)
    Console(width=None if sys.stdout.isatty() else 140, highlight=False).print(table(rows))
    click.echo(f"{gpu.name}, driver {nvml.driver_version()}, torch {torch.__version__}")
    click.echo("archives: " + (", ".join(archives) or "none; name one with --archive"))
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def archives_of(arch: str, file: Path | None) -> tuple[str, ...]:
    """The archives whose kernels are found: this one, or all that are installed."""
    found = archive.installed(arch) if file is None else [archive.Archive(file)]
    current = tuple(str(each.path.resolve()) for each in found if each.is_current and each.arch == arch)
    if file is not None and not current:
        raise click.ClickException(f"{file} was built of other sources, or for another architecture than {arch}")
    return current


def measured(program: str, dtype: str, archives: tuple[str, ...], rounds: int) -> Iterator[Row]:
    """The figures of one program: torch's, ours cold, and ours with archives."""
    theirs = _median(Start(program, dtype, is_ours=False, archives=()), rounds)
    is_cold_too = program != "planning" or not archives
    cold = _median(Start(program, dtype, is_ours=True, archives=()), rounds) if is_cold_too else {}
    archived = _median(Start(program, dtype, is_ours=True, archives=archives), rounds) if archives else {}
    for figure in dict.fromkeys([*theirs, *cold, *archived]):
        seconds = theirs.get(figure), cold.get(figure), archived.get(figure)
        yield Row(program, dtype, figure, *seconds, _ASKED.get((program, figure)))


def _median(start: Start, rounds: int) -> dict[str, float]:
    """Of several processes; nothing if one does not end."""
    who = f"ours{' with an archive' if start.archives else ' cold'}" if start.is_ours else "torch"
    found = []
    for _ in range(rounds):
        print(f"{start.program} {start.dtype}: {who}", file=sys.stderr, flush=True)
        try:
            found.append(seconds_of(start))
        except subprocess.TimeoutExpired:
            print(f"it took more than {_MAX_SECONDS} s", file=sys.stderr, flush=True)
            return {}
    return {figure: statistics.median(each[figure] for each in found) for figure in found[0]}


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
        raise click.ClickException(f"{start.program} failed: {done.stderr.strip()[-1000:] or done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def table(rows: list[Row]) -> Table:
    """The rows as a person reads them; what is over its limit is marked."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("program", "type", "figure"):
        shown.add_column(heading)
    for heading in ("torch", "ours cold", "ours with archive", "asked for"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        ours = row.cold if row.archived is None else row.archived
        is_over = row.asked is not None and ours is not None and ours > row.asked
        cells = (format_seconds(x) for x in (row.torch, row.cold, row.archived, row.asked))
        shown.add_row(_TITLES[row.program], row.dtype, row.figure, *cells, style="yellow" if is_over else None)
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
