"""`tilesmith check` from the command line, with a judge of the test's own where a GPU would be needed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from tilesmith.cli import check_run, main
from tilesmith.core import device as devices
from tilesmith.kernelbench import check_all
from tilesmith.kernelbench.check.sandbox import Limits
from tilesmith.kernelbench.check.verdict import Finding, Speed, Spread, Verdict
from tilesmith.kernelbench.problem_file import ProblemError, problems_in

RIGHT = Verdict("strict", (Finding("builds", True), Finding("given inputs", True, "class fp32")), "fp32")
WRONG = Verdict("strict", (Finding("builds", False, "cuda.cu(3): error: expected a ;"),))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "problem.py").write_text("Model = get_inputs = get_init_inputs = None")
    (tmp_path / "candidate.py").write_text("")
    return str(tmp_path / "problem.py"), str(tmp_path / "candidate.py")


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["check", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def pretend(monkeypatch: pytest.MonkeyPatch, verdicts: dict[str, Verdict | Exception]) -> list[Any]:
    """A GPU, and a judge that gives the verdict of a candidate's name. Returns what it will be asked."""
    asked: list[Any] = []

    class Judge:
        def __init__(
            self, problem: Path, *, limits: Limits, say: Callable[[str], object] = str, turn: Any = None
        ) -> None:
            self.about = (problem.name, limits.seconds)
            say("building [it]")

        def __enter__(self) -> "Judge":
            return self

        def __exit__(self, *_: object) -> None:
            asked.append("closed")

        def __call__(self, candidate: Path, **options: object) -> Verdict:
            asked.append((*self.about, candidate.read_text(), options))
            verdict = verdicts[candidate.name]
            if isinstance(verdict, Exception):
                raise verdict
            return verdict

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(devices, "installed", lambda index: devices.named("h200"))
    for module in (check_run, check_all):
        monkeypatch.setattr(module, "Judge", Judge)
    return asked


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, files: tuple[str, str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = run(*files)
    assert result.exit_code == 2
    assert result.stderr == "Error: check runs candidates on an NVIDIA GPU, and torch finds none here\n"


def test_missing_file(files: tuple[str, str]) -> None:
    result = run(files[0], "nowhere.py")
    assert result.exit_code == 2
    assert "'nowhere.py' does not exist" in result.stderr


def test_right(monkeypatch: pytest.MonkeyPatch, files: tuple[str, str]) -> None:
    asked = pretend(monkeypatch, {"candidate.py": RIGHT})
    result = run(*files, "--timeout", "20", "--accuracy", "tf32", "--sanitize")
    assert result.exit_code == 0
    assert result.stdout == RIGHT.describe() + "\n"
    options = {"mode": "strict", "accuracy": "tf32", "sanitize": True}
    assert asked == [("problem.py", 20.0, "", options), "closed"]


def test_wrong_as_json(monkeypatch: pytest.MonkeyPatch, files: tuple[str, str]) -> None:
    pretend(monkeypatch, {"candidate.py": WRONG})
    result = run(*files, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "problem": files[0],
        "candidate": files[1],
        "mode": "strict",
        "right": False,
        "precision": None,
        "findings": [{"name": "builds", "passed": False, "detail": "cuda.cu(3): error: expected a ;"}],
        "speed": None,
        "notes": [],
    }


def test_a_problem_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, files: tuple[str, str]) -> None:
    asked = pretend(monkeypatch, {"candidate.py": ProblemError("problem.py has no Model")})
    result = run(*files)
    assert result.exit_code == 2
    assert result.stderr == "Error: problem.py has no Model\n"
    assert asked[-1] == "closed"


def timed(ours: float, torchs: float) -> Verdict:
    spreads = [Spread(ms, ms, ms, ms) for ms in (ours, torchs)]
    return replace(RIGHT, speed=Speed(spreads[0], {"fp32": spreads[1]}, 1.0, None, None, "H200", "1980 MHz"))


def test_modules_that_are_there_are_judged_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    problems, modules = tmp_path / "problems", tmp_path / "modules"
    for folder in (problems, modules):
        folder.mkdir()
        for name in ("a.py", "b.py"):
            (folder / name).write_text(f"# {folder.name}")
    asked = pretend(monkeypatch, {"a.py": timed(1.0, 4.0), "b.py": timed(2.0, 2.0)})
    result = run("--all", str(problems), "--modules", str(modules))
    assert result.exit_code == 0, result.output
    options = {"mode": "strict", "accuracy": "fp32"}
    found = sorted((each for each in asked if each != "closed"), key=str)
    assert [(problem, text, own) for problem, _, text, own in found] == [
        (name, "# modules", options) for name in ("a.py", "b.py")
    ]
    assert "2 of 2 are right\nproducts: geometric mean 2.000 of torch's speed\nleast of all: 1.000\n" in result.stdout
    assert "torch    4.0000  ratio 4.000  fp32" in result.stdout


def test_a_wrong_module_and_a_problem_without_one_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "a.py").write_text("")
    pretend(monkeypatch, {"a.py": WRONG})
    result = run("--all", str(tmp_path), "--modules", str(tmp_path / "modules"))
    assert result.exit_code == 1
    assert "WRONG: builds" in result.stdout
    assert "b.py does not define Model, get_inputs, get_init_inputs" in result.stdout
    assert "0 of 2 are right" in result.stdout
    as_json = json.loads(run("--all", str(tmp_path), "--modules", str(tmp_path / "modules"), "--json").stdout)
    assert [report["right"] for report in as_json["reports"]] == [False]
    assert list(as_json["refused"]) == ["b.py"]


def test_modules_are_written_for_problems_that_have_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = problems_in(None)[0]
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems" / source.name).write_text(source.read_text())
    asked = pretend(monkeypatch, {source.name: timed(0.5, 2.0)})
    result = run("--all", str(tmp_path / "problems"), "--modules", str(tmp_path / "modules"))
    assert result.exit_code == 0, result.output
    assert "class ModelNew" in asked[0][2]
    assert (tmp_path / "modules" / source.name).read_text() == asked[0][2]
    assert "128x128 cluster 2" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a problem and a candidate, or --all"),
        (["FOLDER"], "name a problem and a candidate, or --all"),
        (["FOLDER", "FILE"], "a folder of problems needs --all"),
        (["--all", "FILE"], "--all takes one folder"),
        (["--all", "FOLDER", "--sanitize"], "--all takes one folder"),
        (["--all", "FOLDER"], "has no problem files"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, {})
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.py").write_text("")
    names = {"FOLDER": str(tmp_path / "folder"), "FILE": str(tmp_path / "file.py")}
    result = run(*(names.get(each, each) for each in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
