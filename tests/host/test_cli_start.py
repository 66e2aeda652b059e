"""What a command costs before it does anything: its help needs no torch, and nothing it imports needs NumPy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import tilesmith
from tilesmith.cli import _COMMANDS

SRC = Path(__file__).parents[2] / "src"
HELPS = [
    ["--help"],
    ["--version"],
    *([command, "--help"] for command in _COMMANDS),
    ["cache", "ls", "--help"],
    ["explain", "5x6"],  # wrong usage is known as soon
    ["bench", "--shape", "5x6"],
    ["completion", "bash"],
]


def started(*arguments: str, before: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, by a file of its name, as `pip install` writes it. After it, stderr has
    the modules that it imported."""
    script = f"""
import sys
{before}
from tilesmith.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
    return run_script(script, *arguments, **variables)


# Each in turn in one process; after it, stdout has its exit code, whether it printed anything, and what it imported.
ALL_HELPS = """
import contextlib, io, json, sys
from tilesmith.cli import main
for arguments in json.loads(sys.argv[1]):
    out, error, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
    said = bool(out.getvalue()) or "Error: " in error.getvalue()
    print(json.dumps([arguments, code, said, [*sys.modules]]))
"""


def run_script(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    folder = Path(os.environ["XDG_CACHE_HOME"]).parent / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "tilesmith").write_text(script)
    return subprocess.run(
        [sys.executable, str(folder / "tilesmith"), *arguments],
        env=os.environ | {"PYTHONPATH": str(SRC)} | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_help_needs_neither_torch_nor_rich() -> None:
    done = run_script(ALL_HELPS, json.dumps(HELPS))
    assert (done.returncode, done.stderr) == (0, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [arguments for arguments, *_ in found] == HELPS
    for arguments, code, said, modules in found:
        assert code in (0, 2), arguments
        assert said, arguments
        assert "tilesmith.cli" in modules
        assert {"torch", "rich", "numpy"}.isdisjoint(modules), arguments


def test_runs_as_a_module_without_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "tilesmith", "--version"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(SRC)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"tilesmith, version {tilesmith.__version__}\n")
    assert "| tilesmith.cli" in done.stderr.replace("  ", " ")
    assert "torch" not in done.stderr


def test_a_program_has_every_name_and_every_operator_at_once() -> None:
    """A saved program names operators that nobody has called yet, and torch may be imported last."""
    script = (
        "import sys, tilesmith, torch; print(torch.ops.tilesmith.linear, sorted(dir(tilesmith)), tilesmith.explain)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(SRC)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "tilesmith.linear" in done.stdout and "<function explain" in done.stdout
    assert all(repr(name) in done.stdout for name in tilesmith.__all__)


def test_in_the_command_line_the_names_come_when_they_are_asked_for() -> None:
    script = """
import json, sys
import tilesmith
before = "torch" in sys.modules
import tilesmith.explain, tilesmith.override  # modules of the same names as functions
tilesmith.matmul
kinds = {name: type(getattr(tilesmith, name)).__name__ for name in tilesmith.__all__}
try:
    tilesmith.matmull
except AttributeError as error:
    kinds["error"] = str(error)
print(json.dumps([before, kinds]))
"""
    done = run_script(script)
    before, kinds = json.loads(done.stdout)
    assert not before
    assert kinds.pop("error") == "module 'tilesmith' has no attribute 'matmull'"
    assert kinds == {name: type(getattr(tilesmith, name)).__name__ for name in tilesmith.__all__}


WITHOUT_NUMPY = """
from importlib.machinery import PathFinder
find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] == "numpy" else find_spec(name, *rest)
"""


def test_without_numpy_nothing_warns() -> None:
    commands = [["info"], ["explain", "64x64x64", "--json"], ["cache", "ls"]]
    before = f"""{WITHOUT_NUMPY}
from tilesmith.cli import main
for arguments in {commands[:-1]}:
    main(arguments, standalone_mode=False)
"""
    done = started(*commands[-1], before=before)
    assert done.returncode == 0, done.stderr
    (modules,) = done.stderr.splitlines()
    assert "torch" in modules.split()
    assert '"product": "64 x 64 x 64 float32"' in done.stdout


def test_without_numpy_a_process_that_a_command_starts_does_not_warn(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{WITHOUT_NUMPY}")
    problem = tmp_path / "problem.py"
    problem.write_text(
        "import torch, sys\nclass Model(torch.nn.Module): pass\ndef get_inputs(): return sys.nothing\n"
        "def get_init_inputs(): return []\n"
    )
    done = started("optimize", str(problem), "-o", str(tmp_path / "new.py"), PYTHONPATH=f"{SRC}:{tmp_path}")
    assert done.returncode == 2
    assert "NumPy" not in done.stderr
