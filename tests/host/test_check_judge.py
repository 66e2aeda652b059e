"""The judge with a tool around the candidate's process, and with a problem that is none."""

import sys
from pathlib import Path

import pytest

from tilesmith.kernelbench.check import sanitizer
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.problem_file import ProblemError

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, a):
        return 2 * a
def get_inputs():
    return [torch.rand(50, 60)]
def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, a):
        return a + a
"""


def test_what_the_sanitizer_says_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Invalid __global__ write of size 4 bytes"
    tool = tmp_path / "tool.py"
    tool.write_text(f"import os, sys; print('========= {said}', flush=True); os.execv(sys.argv[1], sys.argv[1:])")
    (tmp_path / "problem.py").write_text(PROBLEM)
    (tmp_path / "candidate.py").write_text(CANDIDATE)
    monkeypatch.setattr(sanitizer, "find", lambda: str(tool))
    monkeypatch.setattr(sanitizer, "command", lambda found: [sys.executable, found])
    steps: list[str] = []
    with Judge(tmp_path / "problem.py", device="cpu", say=steps.append) as judge:
        verdict = judge(tmp_path / "candidate.py", sanitize=True)
    assert steps[:2] == ["building candidate.py", "comparing: given inputs"]
    assert steps[-1] == "running it under compute-sanitizer"
    assert [each.name for each in verdict.findings if each.passed is not True] == [sanitizer.NAME]
    assert verdict.finding(sanitizer.NAME).passed is False
    assert verdict.finding(sanitizer.NAME).detail == said


def test_a_problem_that_cannot_be_used(tmp_path: Path) -> None:
    problem = tmp_path / "problem.py"
    problem.write_text("import torch\n")
    says_why = pytest.raises(ProblemError, match=r"problem\.py has no Model and no get_inputs")
    with Judge(problem, device="cpu") as judge, says_why:
        judge(problem)
    assert not judge._folder.exists()
