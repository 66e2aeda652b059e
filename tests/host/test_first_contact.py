"""`scripts/first_contact.py`: its programs run, in processes of their own, and find kernels in named archives alone."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from click import ClickException
from click.testing import CliRunner

from tilesmith.core.device import named
from tilesmith.core.problem import Problem
from tilesmith.planner import choose
from tilesmith.runtime import archive, cubins

SCRIPTS = Path(__file__).parents[2] / "scripts"
ARCH = "sm_90a"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    import first_contact

    return first_contact


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """An archive of a kernel that was never compiled."""
    a = torch.empty(64, 64, device="meta")
    path = tmp_path / "kernels.archive"
    path.write_bytes(archive.packed({choose(Problem.of(a, a), named("h200")).launches[0].kernel: b"cubin"}, ARCH))
    return path


@pytest.mark.parametrize("program", ["training", "lengths", "rows", "planning", "call"])
def test_programs_run_and_tell_seconds(program: str, scripts: ModuleType) -> None:
    """On the CPU, where ours are torch's: smaller by far."""
    from first_contact_steps import PROGRAMS, Start

    torch.manual_seed(0)
    start = Start(program, "float32", is_ours=False, archives=(), device="cpu", shrinks=32)
    found = PROGRAMS[program](start)
    assert found and all(seconds > 0 for seconds in found.values())
    tables = (
        scripts._ASKED_COLD,
        scripts._ASKED_WITH_ARCHIVE,
        scripts._ASKED_OF_FLOAT32,
        [scripts._NO_MORE_THAN_TORCH],
    )
    assert {figure for table in tables for of, figure in table if of == program} <= found.keys()


def test_a_new_process_measures_ours(scripts: ModuleType) -> None:
    from first_contact_steps import Start

    found = scripts.seconds_of(Start("call", "float32", is_ours=True, archives=(), device="cpu", shrinks=32))
    assert 0 < found["the call of these"] < found["import and call"]
    with pytest.raises(scripts.ProcessError, match="no such program"):
        scripts.seconds_of(Start("no such program", "float32", is_ours=True, archives=(), device="cpu"))


def test_a_process_has_an_empty_cache_and_prints_json(scripts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from first_contact_steps import Start

    seen: list[str] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> "subprocess.CompletedProcess[str]":
        seen.append(env["XDG_CACHE_HOME"])
        assert env["CUDA_CACHE_DISABLE"] == "1" and list(Path(seen[-1]).iterdir()) == []
        assert not Start(**json.loads(command[-1])).archives
        return subprocess.CompletedProcess(command, 0, f'a warning\n{{"first step": {len(seen)}}}\n', "")

    monkeypatch.setattr(subprocess, "run", run)
    (row,) = scripts.measured("training", "bfloat16", (), rounds=3, failures=[])
    assert (row.torch, row.cold, row.archived) == (2, 5, None)
    assert len(set(seen)) == 6
    assert scripts.table([row]).row_count == 1


def test_a_process_that_fails_costs_its_own_figures(scripts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds_of(start: Any) -> dict[str, float]:
        if start.is_ours and not start.archives:
            raise scripts.ProcessError("out of memory")
        return {"all lengths": 4.0 if start.is_ours else 3.0}

    monkeypatch.setattr(scripts, "seconds_of", seconds_of)
    failures: list[str] = []
    (row,) = scripts.measured("lengths", "float32", ("kernels.archive",), rounds=1, failures=failures)
    assert (row.torch, row.cold, row.archived) == (3, None, 4)
    assert failures == ["lengths float32, ours cold: out of memory"]


@pytest.mark.parametrize(
    ("program", "dtype", "figure", "cold", "archived"),
    [
        ("training", "float32", "first step", 10, 1.0),
        ("training", "bfloat16", "first step", 10, None),
        ("training", "float32", "second step", None, None),
        ("lengths", "float32", "all lengths", None, 3.5),  # torch's
        ("lengths", "bfloat16", "all lengths", None, None),
        ("rows", "float32", "all row counts", None, 0.15),
        ("rows", "bfloat16", "all row counts", None, 0.15),
        ("call", "float32", "import and call", 2, None),
        ("planning", "float32", "rows, median", 0.3e-3, 0.3e-3),
        ("planning", "bfloat16", "random shapes, p99", 1e-3, 1e-3),
    ],
)
def test_what_was_asked_for_stands_beside_what_there_is(
    program: str, dtype: str, figure: str, cold: float | None, archived: float | None, scripts: ModuleType
) -> None:
    row = scripts.Row(program, dtype, figure, torch=3.5, cold=20.0, archived=None)
    assert (row.asked_cold, row.asked_archived) == (cold, archived)
    assert row.is_over == (cold is not None)
    assert scripts.Row(program, dtype, figure, torch=3.5, cold=None, archived=4.0).is_over == (archived is not None)


def test_a_run_tells_its_kernels_and_what_was_asked_for(
    scripts: ModuleType, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(scripts, "installed", lambda index: named("h200"))
    monkeypatch.setattr(scripts, "catalogue", lambda gpu: range(1234))
    monkeypatch.setattr(scripts, "seconds_of", lambda start: {"all row counts": 0.1 if start.archives else 0.2})
    file = tmp_path / "first.json"
    arguments = ["--archive", str(built), "--only", "rows", "--dtype", "float32", "--json", str(file)]
    done = CliRunner().invoke(scripts.main, arguments)
    assert done.exit_code == 0, done.output
    assert "1234 kernels in the catalogue" in done.stdout
    assert f"kernels.archive, 1 kernel, {built.stat().st_size:,} bytes" in done.stdout
    assert "all row counts 200.00 ms 200.00 ms - 100.00 ms 150.00 ms" in " ".join(done.stdout.split())
    told = json.loads(file.read_text())
    assert told["kernels"] == 1234
    assert told["archives"] == [{"name": "kernels.archive", "kernels": 1, "bytes": built.stat().st_size}]
    assert told["rows"][0]["archived"] == 0.1 and told["rows"][0]["asked_archived"] == 0.15


def test_only_the_archives_that_are_named_are_seen(scripts: ModuleType, built: Path) -> None:
    a = torch.empty(64, 64, device="meta")
    kernel = choose(Problem.of(a, a), named("h200")).launches[0].kernel
    users = archive.users_file(ARCH)
    users.parent.mkdir(mode=0o700, parents=True)
    users.write_bytes(built.read_bytes())
    assert cubins.cubin(kernel, ARCH) == b"cubin"
    for archives, found in (((), None), ((str(built),), b"cubin")):
        program = f"""
import sys; sys.path.insert(0, {str(SCRIPTS)!r})
import torch
from first_contact_steps import Start
Start("call", "float32", True, {archives!r}).multiplier()
from tilesmith.core.device import named
from tilesmith.core.problem import Problem
from tilesmith.planner import choose
from tilesmith.runtime import archive
a = torch.empty(64, 64, device="meta")
print(archive.find(choose(Problem.of(a, a), named("h200")).launches[0].kernel, "{ARCH}"))
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(found)
    assert [each.path for each in scripts.archives_of(ARCH, built)] == [built]
    with pytest.raises(ClickException, match="another architecture"):
        scripts.archives_of("sm_80", built)
