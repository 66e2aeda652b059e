"""`tilesmith check` from the command line, with a judge of the test's own where a GPU would be needed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from tilesmith.cli import check as command
from tilesmith.cli import main
from tilesmith.kernelbench.check.sandbox import Limits
from tilesmith.kernelbench.check.verdict import Finding, Verdict
from tilesmith.kernelbench.problem_file import ProblemError

RIGHT = Verdict("strict", (Finding("builds", True), Finding("given inputs", True, "class fp32")), "fp32")
WRONG = Verdict("strict", (Finding("builds", False, "cuda.cu(3): error: expected a ;"),))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    for name in ("problem.py", "candidate.py"):
        (tmp_path / name).write_text("")
    return str(tmp_path / "problem.py"), str(tmp_path / "candidate.py")


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["check", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def pretend(monkeypatch: pytest.MonkeyPatch, verdict: Verdict | Exception) -> list[Any]:
    """A GPU, and a judge that gives one verdict. Returns what it will be asked."""
    asked: list[Any] = []

    class Judge:
        def __init__(self, problem: Path, *, limits: Limits, say: Callable[[str], None]) -> None:
            asked.extend([problem, limits.seconds])
            say("building [it]")

        def __enter__(self) -> "Judge":
            return self

        def __exit__(self, *_: object) -> None:
            asked.append("closed")

        def __call__(self, candidate: Path, **options: object) -> Verdict:
            asked.extend([candidate, options])
            if isinstance(verdict, Exception):
                raise verdict
            return verdict

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command, "Judge", Judge)
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
    asked = pretend(monkeypatch, RIGHT)
    result = run(*files, "--timeout", "20", "--accuracy", "tf32", "--sanitize")
    assert result.exit_code == 0
    assert result.stdout == RIGHT.describe() + "\n"
    options = {"mode": "strict", "accuracy": "tf32", "sanitize": True}
    assert asked == [Path(files[0]), 20.0, Path(files[1]), options, "closed"]


def test_wrong_as_json(monkeypatch: pytest.MonkeyPatch, files: tuple[str, str]) -> None:
    pretend(monkeypatch, WRONG)
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
    asked = pretend(monkeypatch, ProblemError("problem.py has no Model"))
    result = run(*files)
    assert result.exit_code == 2
    assert result.stderr == "Error: problem.py has no Model\n"
    assert asked[-1] == "closed"
