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

from tilesmith.cli import main
from tilesmith.core import threads
from tilesmith.core.device import named
from tilesmith.kernelbench import compiled_time, optimizing
from tilesmith.kernelbench.check.verdict import Finding, Speed, Spread, Verdict
from tilesmith.kernelbench.optimize_all import Row, summary
from tilesmith.kernelbench.optimized_page import page
from tilesmith.kernelbench.optimizing import Optimized
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
    """Problems are traced in this process, for time, and one after the other. Elsewhere each has one of its own."""
    monkeypatch.setattr(optimizing, "recognize", recognize_here)
    monkeypatch.setattr(threads, "cores", lambda: 1)


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
        "fused": "",
        "left": "",
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
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_the_process_that_traces_ends_with_the_command(
    problem: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
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
        assert process.wait(30) == code
    assert soon(lambda: not is_running(worker))


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    run = optimize(tmp_path / "none.py", tmp_path / "new.py")
    assert run.exit_code == 2
    assert "does not exist" in run.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three problems, one of which cannot be written."""
    folder = tmp_path / "problems"
    folder.mkdir()
    for name, result in (
        ("10_plain", "a @ b"),
        ("9_layer", "torch.relu(torch.nn.functional.linear(a, b.t().contiguous(), b[0]))"),
        ("11_bad", "a @ b if a.sum() > 0 else b"),
    ):
        (folder / f"{name}.py").write_text(PROBLEM.format(result=result))
    return folder


def optimize_all(folder: Path, output: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["optimize", "--all", str(folder), "-o", str(output), *options])


@pytest.mark.usefixtures("traced_here")
def test_a_folder_has_a_module_for_each_problem_and_a_table(folder: Path, tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    run = optimize_all(folder, tmp_path / "new", "--html", str(html))
    assert run.exit_code == 0, run.output
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["10_plain.py", "9_layer.py"]
    file = ProblemFile.read(folder / "10_plain.py")
    assert (tmp_path / "new" / "10_plain.py").read_text() == written(file, recognize_here(file), named("h200"), "fp32")
    lines = run.output.splitlines()
    assert lines[0].split() == ["problem", "fused"]
    assert [line.split()[0] for line in lines[1:] if line[0].isdigit()][:3] == [
        "9_layer.py",
        "10_plain.py",
        "11_bad.py",
    ]
    assert "1 plan; bias + relu" in lines[1] and "refused: " in run.output
    assert lines[-1] == "2 of 3 written"
    text = html.read_text()
    assert "2 of 3 written." in text and "1 plan; bias + relu" in text and "forward needs the elements" in text


@pytest.mark.usefixtures("traced_here")
def test_json_has_a_row_for_each_problem(folder: Path, tmp_path: Path) -> None:
    run = optimize_all(folder, tmp_path / "new", "--json")
    assert run.exit_code == 0, run.output
    layer, plain, bad = json.loads(run.output)
    assert (layer["problem"], layer["module"]["fused"], layer["refused"]) == ("9_layer.py", "bias + relu", "")
    assert plain["module"]["compiled"] == ["sm_75", "sm_90a"]
    assert bad["module"] is None and "forward needs the elements" in bad["refused"]


def test_what_is_no_folder_is_refused(problem: Path, folder: Path, tmp_path: Path) -> None:
    for run, said in (
        (optimize_all(problem, tmp_path / "new"), "--all takes a folder of problems"),
        (optimize_all(folder, problem), "--all takes a folder of problems"),
        (optimize_all(folder, folder), "has the problems themselves, which are not overwritten"),
        (optimize_all(folder, tmp_path / "not" / "there"), "does not exist"),
        (optimize_all(tmp_path, tmp_path / "new", "--standalone"), "no --standalone"),
        (optimize(folder, tmp_path / "new"), "a folder of problems needs --all"),
        (optimize(problem, folder), "is a folder: name the new file"),
        (optimize(problem, tmp_path / "new.py", "--html", str(tmp_path / "page")), "and so does --html"),
    ):
        assert run.exit_code == 2
        assert said in " ".join(run.output.split())
    (tmp_path / "empty").mkdir()
    run = optimize_all(tmp_path / "empty", tmp_path / "new")
    assert run.exit_code == 2 and "has no problem files" in run.output


def row(ours_ms: float, torch_ms: float, compiled_ms: float | None, *, right: bool = True) -> Row:
    spread = {
        name: Spread(median=ms, lower=ms, upper=ms, mean=ms) for name, ms in (("ours", ours_ms), ("torch", torch_ms))
    }
    speed = Speed(
        candidate=spread["ours"],
        torch={"fp32": spread["torch"]},
        tflops=1.0,
        roofline_ms=None,
        roofline_percent=None,
        gpu="NVIDIA H200",
        state="",
    )
    verdict = Verdict("strict", (Finding("given inputs", right),), "fp32", speed)
    module = Optimized(
        problem="p.py",
        computes="A @ B",
        gpu="NVIDIA H200",
        arch="sm_90a",
        accuracy="fp32",
        multiplies=True,
        plan="hopper 128x128",
        plans=("hopper 128x128",),
        fused="",
        left="mish",
        note=None,
        workspace_bytes=0,
        output="new.py",
        sha256="",
        compiled=(),
        verdict=verdict,
    )
    return Row("p.py", module, "", compiled_ms)


def test_rows_say_how_fast_a_module_is_and_whether_it_is_right() -> None:
    fast, slow = row(1.0, 4.0, 2.0), row(2.0, 1.0, None, right=False)
    assert fast.cells == ("p.py", "1 plan", "4.0000", "2.0000", "1.0000", "4.000", "fp32", "mish")
    assert slow.cells[3:7] == ("", "2.0000", "0.500", "WRONG")
    assert list(summary([fast, slow])) == [
        "2 of 2 written",
        "1 of 2 right",
        "with products: geometric mean 1.414 of torch's speed, least 0.500",
        "and 2.000 of that of torch.compile, of 1",
    ]
    text = page("two", [fast, slow])
    assert text.count('class="faster"') == 1 and text.count("<tr") == 3 and "WRONG" in text


def test_what_torch_cannot_compile_here_has_no_time(problem: Path) -> None:
    assert compiled_time.milliseconds(problem) is None
