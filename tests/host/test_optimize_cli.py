"""`tilesmith optimize` on a machine without a GPU: what it writes, says and refuses."""

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from processes import is_running, soon

from tilesmith.cli import main, optimize_run
from tilesmith.core.device import named
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.recognize import recognize_here
from tilesmith.kernelbench.write import written

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, a, b):
        return {result}
def get_inputs():
    return [torch.rand(40, 24), torch.rand(24, 32)]
def get_init_inputs():
    return []
"""


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.py"
    path.write_text(PROBLEM.format(result="torch.tril(a @ b)"))
    return path


def optimize(problem: Path, output: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["optimize", str(problem), "-o", str(output), *options])


@pytest.fixture
def traced_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The problem is traced in this process, for time. Elsewhere it has one of its own."""
    monkeypatch.setattr(optimize_run, "recognize", recognize_here)


def test_a_module_is_written_and_compiled(problem: Path, tmp_path: Path) -> None:
    output = tmp_path / "new.py"
    run = optimize(problem, output)
    assert run.exit_code == 0, run.output
    file = ProblemFile.read(problem)
    assert output.read_text() == written(file, recognize_here(file), named("h200"), "fp32")
    lines = run.output.splitlines()
    assert lines[0] == "problem.py computes tril(a @ b)"
    assert lines[1].startswith("planned for NVIDIA H200 (sm_90a): fp64_mma ")
    assert lines[2].startswith(f"written to {output}, sha256 ")
    assert "compiled for sm_75, sm_90a; there is no sm_90a GPU here" in lines[3]


@pytest.mark.usefixtures("traced_here")
def test_json_has_all_of_it(problem: Path, tmp_path: Path) -> None:
    output = tmp_path / "new.py"
    run = optimize(problem, output, "--arch", "sm_75", "--standalone", "--json")
    assert run.exit_code == 0, run.output
    result = json.loads(run.output)
    assert result.pop("sha256") == hashlib.sha256(output.read_bytes()).hexdigest()
    assert result == {
        "problem": "problem.py",
        "computes": "tril(a @ b)",
        "gpu": "Tesla T4",
        "arch": "sm_75",
        "accuracy": "fp32",
        "multiplies": True,
        "plan": None,
        "plans": [],
        "note": "All products run on the CUDA cores: kernels for tensor cores are for compute capability 9.0, not 7.5",
        "workspace_bytes": 0,
        "output": str(output),
        "compiled": ["sm_75"],
        "verdict": None,
    }
    assert "def get_inputs():" in output.read_text()


@pytest.mark.usefixtures("traced_here")
def test_an_architecture_without_kernels_for_its_tensor_cores_is_named(problem: Path, tmp_path: Path) -> None:
    note = "All products run on the CUDA cores: kernels for tensor cores are for compute capability 9.0, not 8.0"
    output = tmp_path / "new.py"
    run = optimize(problem, output, "--arch", "sm_80")
    assert run.exit_code == 0, run.output
    assert run.output.splitlines()[1:3] == ["kernels for any GPU from Turing on", note]
    assert f"# {note}." in output.read_text()
    problem.write_text(PROBLEM.format(result="a * 2.0"))
    run = optimize(problem, output, "--arch", "sm_80")
    assert "CUDA cores" not in run.output


@pytest.mark.usefixtures("traced_here")
def test_what_cannot_be_written_is_named(problem: Path, tmp_path: Path) -> None:
    problem.write_text(PROBLEM.format(result="a @ b if a.sum() > 0 else b"))
    output = tmp_path / "new.py"
    run = optimize(problem, output)
    assert run.exit_code == 2
    assert "needs the elements of a tensor" in run.output
    assert "problem.py:5" in run.output
    assert "Traceback" not in run.output
    assert not output.exists()


@pytest.mark.usefixtures("traced_here")
def test_a_folder_that_is_not_there_is_named(problem: Path, tmp_path: Path) -> None:
    run = optimize(problem, tmp_path / "none" / "new.py")
    assert run.exit_code == 2
    assert f"Directory {str(tmp_path / 'none')!r} does not exist" in run.output


@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
def test_a_problem_is_not_overwritten(problem: Path, tmp_path: Path, link: Callable[[Path, Path], None] | None) -> None:
    output, before = tmp_path / ("problem.py" if link is None else "new.py"), problem.read_bytes()
    if link is not None:
        link(output, problem)
    run = optimize(problem, output, "--no-check")
    assert run.exit_code == 2
    assert "is the problem itself" in run.output
    assert problem.read_bytes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_process_that_traces_ends_with_the_command(problem: Path, tmp_path: Path, number: signal.Signals) -> None:
    mark = tmp_path / "mark"
    part = str(mark) + ".part"
    says = f"open({part!r}, 'w').write(str(os.getpid())); os.rename({part!r}, {str(mark)!r})"
    problem.write_text("import os" + PROBLEM.replace("return {result}", f"{says}\n        while True: pass"))
    command = [sys.executable, "-m", "tilesmith", "optimize", str(problem), "-o", str(tmp_path / "new.py")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert soon(mark.exists)
        worker = int(mark.read_text())
        assert is_running(worker)
        process.send_signal(number)
        assert process.wait(30) == -number
    assert soon(lambda: not is_running(worker))


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    run = optimize(tmp_path / "none.py", tmp_path / "new.py")
    assert run.exit_code == 2
    assert "does not exist" in run.output
