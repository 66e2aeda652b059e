"""How commands end: with which exit code, with what message, and with nothing left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner, Result
from processes import is_running, soon

from tilesmith.bench.results import Results
from tilesmith.cli import INTERRUPTED, explain, info, main
from tilesmith.core.errors import UnavailableError

SRC = Path(__file__).parents[2] / "src"
RECORDED = Path(__file__).parents[1] / "data" / "bench.json"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


HUGE = ["9" * 20 + "x1x1", "3000000000x3000000000x3000000000", "9" * 5000 + "x1x1", "1x1x1::" + "9" * 30]


@pytest.mark.parametrize(
    "shape", [*HUGE, "", " ", "x", "5x6", "5x6x0", "\u0665x6x7", "5x6x7:nn:\u0662", "-5x6x7", "--"]
)
def test_a_shape_that_is_none_is_said_in_one_line_wherever_one_is_asked_for(shape: str, tmp_path: Path) -> None:
    asked = {
        ("explain", "--"): "explain",
        ("bench", f"--shape={shape}"): "bench",
        ("tune", f"--shape={shape}"): "tune",
        ("build", f"--shape={shape}"): "build",
    }
    for arguments in asked:
        result = run(*arguments, *([shape] if arguments[0] == "explain" else []))
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        assert line.startswith("Error: Invalid value for ")
        assert len(line) < 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["multiply", "--json"], "No such command 'multiply'"),
        (["--json"], "No such option"),
        (["explain", "--json"], "Missing argument"),
        (["explain", "5x6", "--json"], "is not a product"),
        (["explain", "--json", "5x6x7", "--gpu", "k80"], "unknown GPU 'k80'"),
        (["bench", "--json"], "torch finds none here"),
        (["tune", "--json"], "name what to tune"),
        (["tune", "--shape", "5x6x7", "--json"], "torch finds none here"),
        (["check", "--all", "--json"], "torch finds none here"),
        (["optimize", "nowhere.py", "-o", "new.py", "--json"], "does not exist"),
        (["build", "--suite", "seeds", "--seed", "1", "--json"], "--suite random"),
        (["cache", "lss", "--json"], "No such command 'lss'"),
    ],
)
def test_an_error_is_json_where_json_was_asked_for(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (2, "")
    error = json.loads(result.stdout)
    assert list(error) == ["error"]
    assert message in error["error"]


def ending(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """`tilesmith info` ends so."""

    def callback(as_json: bool) -> None:
        raise error

    monkeypatch.setattr(info.info, "callback", callback)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "interrupted"),
        (UnavailableError("no driver"), 2, "Error: no driver"),
        (PermissionError(13, "Permission denied", "/x/y"), 2, "Error: /x/y: Permission denied"),
        (MemoryError(), 2, "Error: this machine has too little memory for it"),
        (click.exceptions.Exit(1), 1, ""),
    ],
)
def test_every_command_ends_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    ending(monkeypatch, error)
    result = run("info")
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (code, "", message)
    result = run("info", "--json")
    assert result.exit_code == code
    if message:
        assert json.loads(result.stdout) == {"error": message.removeprefix("Error: ")}
    assert INTERRUPTED == 130


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    ending(monkeypatch, ZeroDivisionError())
    assert isinstance(run("info").exception, ZeroDivisionError)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "tilesmith", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SRC)} | more


def test_ctrl_c_leaves_no_process_and_no_traceback(tmp_path: Path) -> None:
    """The signal comes while another process traces the model."""
    problem, mark = tmp_path / "problem.py", tmp_path / "mark"
    problem.write_text(f"""
import os, torch
class Model(torch.nn.Module):
    def forward(self, a):
        open({str(mark)!r} + ".part", "w").write(str(os.getpid()))
        os.rename({str(mark)!r} + ".part", {str(mark)!r})
        while True: pass
def get_inputs(): return [torch.rand(4, 4)]
def get_init_inputs(): return []
""")
    with subprocess.Popen(
        command("optimize", problem, "-o", tmp_path / "new.py"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert soon(mark.exists)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert (output, errors.strip()) == ("", "interrupted")
    assert soon(lambda: not is_running(int(mark.read_text())))
    assert not (tmp_path / "new.py").exists()


def test_the_first_ctrl_c_counts_and_the_next_one_ends_the_process() -> None:
    script = """
import signal, sys, time
from tilesmith.cli import group
signal.signal(signal.SIGINT, group._Interrupts())
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    signal.raise_signal(signal.SIGINT)  # at once: it was the same one
    print("cleaned up", flush=True)
    time.sleep(group._ONE_CTRL_C + 0.1)
    signal.raise_signal(signal.SIGINT)
print("never")
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "cleaned up\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["explain", "5x6x7"]], ids=" ".join)
def test_a_reader_that_leaves_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command(*arguments), env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


FROM = ("--html", "--png", "--markdown", "--json")
MEASURES = {
    "--suite": ["seeds"],
    "--shape": ["5x6x7"],
    "--dtype": ["bf16"],
    "--accuracy": ["tf32"],
    "--seed": ["1"],
    "--count": ["2"],
    "--against": ["torch"],
    "--warm-l2": [],
    "--seconds": ["1"],
    "--record": ["r.json"],
    "--commit": ["c0ffee"],
}
SHOWS = {"--html": ["r.html"], "--png": ["r.png"], "--markdown": ["r.md"]}


def test_no_option_of_bench_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"--compare": [RECORDED, RECORDED], "--from": [RECORDED]}
    all_options = {each.opts[0] for each in main.get_command(click.Context(main), "bench").params}  # type: ignore[union-attr]
    assert all_options == {*MEASURES, *SHOWS, *given, "--json"}
    for option, values in MEASURES.items():
        for mode, files in given.items():
            result = run("bench", mode, *files, option, *values)
            assert result.exit_code == 2, (mode, option)
            assert f"{option} would mean nothing" in result.stderr
    for option, values in SHOWS.items():
        assert run("bench", "--compare", RECORDED, RECORDED, option, *values).exit_code == 2
        assert run("bench", "--from", RECORDED, option, *values).exit_code == 0
        assert Path(*values).exists()
    assert run("bench", "--compare", RECORDED, RECORDED, "--from", RECORDED).exit_code == 2
    assert run("bench", "--from", RECORDED, "--from", RECORDED, "--json").exit_code == 2


def test_bench_prints_json_of_what_was_recorded_and_of_what_changed(tmp_path: Path) -> None:
    shown = run("bench", "--from", RECORDED, "--json")
    assert (shown.exit_code, shown.stderr) == (0, "")
    (tmp_path / "again.json").write_text(shown.stdout)
    assert Results.read(tmp_path / "again.json") == Results.read(RECORDED)
    changed = run("bench", "--compare", RECORDED, RECORDED, "--json")
    assert changed.exit_code == 0
    assert json.loads(changed.stdout)["regression"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--forget", "--within", "2"], "--within would mean nothing"),
        (["--forget", "--record", "t.json"], "--record would mean nothing"),
        (["--forget", "--shape", "5x6x7"], "--shape would mean nothing"),
        (["--trace", "FILE", "--dtype", "bf16"], "no --dtype and no --accuracy"),
        (["--trace", "FILE", "--accuracy", "tf32"], "no --dtype and no --accuracy"),
        (["--record", "none/t.json", "--shape", "5x6x7"], "Directory 'none' does not exist"),
        (["--record", "FOLDER", "--shape", "5x6x7"], "is a directory"),
        ([], "name what to tune"),
    ],
)
def test_tune_looks_at_its_arguments_before_it_looks_for_a_gpu(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text("")
    names = {"FILE": str(tmp_path / "p.py"), "FOLDER": str(tmp_path)}
    result = run("tune", *(names.get(each, each) for each in arguments))
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--shape", "foo"], "'foo' is not a product"),
        (["bench", "--suite", "seeds", "--seed", "1"], "--suite random"),
        (["bench", "--html", "none/x.html"], "Directory 'none' does not exist"),
        (["bench", "--from", "none.json"], "does not exist"),
        (["bench", "--seconds", "nan"], "'nan' is not a finite number"),
        (["bench", "--against", ""], "'': choose from torch,"),
        (["bench", "--html", ""], "a file has a name"),
        (["bench", "--from", "list.json"], "list.json has no results of tilesmith bench: it is JSON of another kind"),
        (["build", "--dtype", "bf16"], "name some with --suite or --shape"),
        (["check", "README.md", "README.md"], "README.md:1: not Python"),
    ],
)
def test_arguments_come_before_the_gpu(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.json").write_text("[]")
    Path("README.md").write_text("# Read me first\nthis is no Python\n")
    result = run(*arguments)
    assert result.exit_code == 2
    assert message.replace("README.md:1", "README.md:2") in result.stderr


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("bf16", "bfloat16"), ("BF16", "bfloat16"), ("half", "float16"), ("fp16", "float16"), ("torch.int8", "int8")],
)
@pytest.mark.parametrize(
    ("gpu", "found"), [("--gpu=H200", "NVIDIA H200 (sm_90a)"), ("--arch=sm_80", "NVIDIA A100 (sm_80)")]
)
def test_types_and_gpus_have_many_names(dtype: str, name: str, gpu: str, found: str) -> None:
    result = run("explain", "5x6x7", "--dtype", dtype, gpu)
    assert result.output.startswith(f"5 x 6 x 7 {name} on {found}\n")


def test_a_gpu_without_rates_of_its_own_is_said_to_have_none() -> None:
    about = {gpu: run("explain", "5x6x7", "--gpu", gpu).output.splitlines()[1:3] for gpu in ("sm_86", "sm_103", "h200")}
    assert about["sm_86"][0].startswith("  No rates were fitted on NVIDIA A10:")
    assert about["sm_103"][0].startswith("  No rates were fitted on")
    assert about["h200"] == ["", "The work"]


@pytest.mark.parametrize("columns", [40, 60])
def test_an_explanation_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = run("explain", "8205x2949x5921", "--gpu", "h200").output
    assert 0.9 * columns < max(map(len, narrow.splitlines())) <= columns
    monkeypatch.setenv("COLUMNS", "200")
    wide = run("explain", "8205x2949x5921", "--gpu", "h200").output
    assert max(map(len, wide.splitlines())) == 80
    assert "".join(narrow.split())[:300] == "".join(wide.split())[:300]


@pytest.mark.parametrize("arguments", [["info"], ["doctor"], ["cache", "ls"], ["explain", "512x512x512"]], ids=" ".join)
def test_no_line_of_a_pipe_ends_in_blanks(arguments: list[str], own_cache: Path) -> None:
    own_cache.mkdir(parents=True, mode=0o700)
    (own_cache / "x.cubin").write_bytes(b"")
    lines = run(*arguments).output.splitlines()
    assert len(lines) > 1
    assert [line for line in lines if line != line.rstrip()] == []


def completed(*words: str) -> list[str]:
    """What a shell offers for the last word."""
    done = CliRunner().invoke(
        main,
        env={
            "_TILESMITH_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["tilesmith", *words]),
            "COMP_CWORD": str(len(words)),
        },
        prog_name="tilesmith",
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ex"], ["explain"]),
        (["explain", "--gpu", "sm_8"], ["sm_80", "sm_86", "sm_89"]),
        (["explain", "--arch", "H"], ["h200", "h100"]),
        (["explain", "--dtype", "bf"], ["bfloat16", "bf16"]),
        (["explain", "4"], ["4096x4096x4096"]),
        (["explain", "5x6x7:t"], ["5x6x7:tn", "5x6x7:tt"]),
        (["bench", "--suite", "se"], ["seeds"]),
        (["bench", "--accuracy", "t"], ["tf32"]),
        (["cache", "c"], ["clear"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_shells_complete_commands_options_and_values(words: list[str], offered: list[str]) -> None:
    assert completed(*words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_this_program(shell: str) -> None:
    script = run("completion", shell).output
    assert f"_TILESMITH_COMPLETE={shell}_complete" in script


def test_json_with_a_file_records_as_it_did_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded runs name such commands."""
    for arguments in (["--json", "none/r.json"], ["--json=none/r.json"]):
        result = run("bench", *arguments)
        assert result.exit_code == 2
        assert "Invalid value for '--record': Directory 'none' does not exist" in result.stderr
    assert explain.explain.name == "explain"
    result = run("explain", "--json", "5x6x7")
    assert json.loads(result.stdout)["product"] == "5 x 6 x 7 float32"
