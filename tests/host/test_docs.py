"""The documentation has every name, argument, option and operation of the code, and builds as a site."""

import dataclasses
import importlib
import inspect
import json
import math
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch

import tilesmith
from tilesmith.bench.results import TORCH, Results
from tilesmith.cli import main
from tilesmith.kernelbench.rules import IN_PLACE, RULES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def documented() -> list[str]:
    """The names with an entry in the reference of Python."""
    return re.findall(r"^::: tilesmith\.(\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE)


def test_every_public_name_has_an_entry() -> None:
    modules = {name for name in tilesmith.__all__ if inspect.ismodule(getattr(tilesmith, name))}
    layers = {f"nn.{name}" for name, each in vars(tilesmith.nn).items() if _is_module_of(each, tilesmith.nn.__name__)}
    own = set(tilesmith.__all__) - modules - {"__version__"}
    assert sorted(documented()) == sorted(own | layers | {"distributed.register"})
    assert "`tilesmith.__version__`" in (DOCS / "api.md").read_text()


def _is_module_of(each: object, module: str) -> bool:
    return inspect.isclass(each) and issubclass(each, torch.nn.Module) and each.__module__ == module


@pytest.mark.parametrize("name", documented())
def test_every_argument_is_described(name: str) -> None:
    described: Any = tilesmith
    for part in name.split("."):
        described = getattr(described, part)
    docstring = inspect.getdoc(described)
    assert docstring
    if dataclasses.is_dataclass(described) or (inspect.isclass(described) and issubclass(described, Exception)):
        return
    _, _, arguments = docstring.partition("\nArgs:\n")
    names = re.findall(r"^    (\w+(?:, \w+)*): ", arguments, re.MULTILINE)
    assert sorted(", ".join(names).split(", ")) == sorted(inspect.signature(described).parameters) or (
        not names and not inspect.signature(described).parameters
    )


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


@pytest.mark.parametrize(("name", "command"), commands(main))
def test_the_page_of_commands_has_all_options(name: str, command: click.Command) -> None:
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", (DOCS / "cli.md").read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    rows = "".join(re.findall(r"^\| (`-.*?) \|", section[1], re.MULTILINE))
    own = {option for each in command.params if isinstance(each, click.Option) for option in each.opts}
    assert set(re.findall(r"(?<!\w)--?[a-z][\w-]*", rows)) == own


def test_the_page_of_optimize_has_all_operations() -> None:
    _, _, section = (DOCS / "optimize.md").read_text().partition("## Operations of an expression\n")
    rows = " ".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))
    names = sorted(str(packet).removeprefix("aten.") for packet in (*RULES, *IN_PLACE))
    assert sorted(re.findall(r"`(\w+)`", rows)) == names


def test_figures_are_those_of_the_recorded_runs() -> None:
    entries = [each for path in (DOCS / "results").glob("*.json") for each in Results.read(path).entries]

    def ratios(suite: str, opponent: str = TORCH, *, graded: bool = False) -> list[float]:
        """Of the suites of this name, and of those that are included under it."""
        return [
            each.ratio(opponent)
            for each in entries
            if re.match(suite, each.suite) and opponent in each.competitors and ("graded" in each.variant) == graded
        ]

    def mean(values: list[float]) -> float:
        return math.exp(statistics.fmean(map(math.log, values)))

    float32, graded, tf32 = ratios("fp32"), ratios("fp32", graded=True), ratios("tf32", "torch-tf32")
    aligned, odd, small = ratios("half: aligned|half: batched|half: skinny"), ratios("half: odd"), ratios("half: small")
    ranges = (
        f"{min(float32):.2f} to {max(float32):.1f}; graded values {min(graded):.2f} to {max(graded):.1f}",
        f"{min(tf32):.1f} to {max(tf32):.1f}",
        f"{min(odd):.1f} to {max(odd):.1f}",
    )
    readme, table, beside = (
        " ".join((ROOT / name).read_text().split())
        for name in ("README.md", "docs/compatibility.md", "docs/comparison.md")
    )
    for each in ranges:
        assert f" {each} |" in readme
        assert f": {each}" in table
    assert f": {min(aligned):.2f} to {max(aligned):.2f};" in table
    assert f"small ones {min(small):.2f} to {max(small):.2f} |" in table
    means = mean(ratios("half: aligned")), mean(float32), len(float32), mean(odd), len(odd)
    said = (
        r"aligned 16-bit products is (\S+) .*\((\S+) times as fast .* (\d+) recorded .*"
        r"odd strides \((\S+) times over (\d+) products"
    )
    found = re.search(said, beside)
    assert found is not None
    assert found.groups() == tuple(f"{x:.{n}f}" for x, n in zip(means, (3, 1, 0, 1, 0), strict=True))


def test_every_note_is_in_the_list_of_notes() -> None:
    listed = set(re.findall(r"\]\((2\S+\.md)\)", (DOCS / "notes" / "README.md").read_text()))
    assert listed == {path.name for path in (DOCS / "notes").glob("2*.md")}


def test_the_site_builds_without_a_warning_and_asks_the_network_for_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "api.html", "notes/2026-11-simt.html"} <= set(pages)
    for name, text in pages.items():
        assert not re.findall(r'<(?:link|script|img|iframe)\b[^>]*?(?:href|src)="(?:https?:)?//', text), name
    assert 'id="tilesmith.matmul"' in pages["api.html"]


def test_a_link_to_what_is_not_there_ends_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    pages = importlib.import_module("site_pages")
    with pytest.raises(Exception, match=r"docs/linear.md links to nowhere.md, which is not there"):
        pages.rewritten("[a page](nowhere.md)", "linear.md", {"linear.md"})
    assert pages.rewritten("[us](../README.md) [it](../Makefile)", "linear.md", {"linear.md"}) == (
        "[us](index.md) it (`Makefile`)"
    )


@pytest.mark.usefixtures("emulator_cache")
def test_the_programs_of_the_readme_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec("".join(blocks), names)
    assert names["y"].shape == (16, 32)
    assert names["c"].shape == (37, 29)


@pytest.mark.usefixtures("emulator_cache")
def test_the_notebook_runs_and_says_what_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    names: dict[str, Any] = {}
    for cell in cells:
        exec("".join(cell["source"]), names)
    errors = names["errors"]
    assert errors["fp32"] <= errors["torch"] < 1e-6 < 1e-5 < errors["tf32"] < 1e-3
    assert torch.allclose(names["ours"], names["theirs"], atol=1e-5)
    printed = capsys.readouterr().out
    assert printed.count(" tilesmith  ") == 5
    assert "float64 is left to torch" in printed
