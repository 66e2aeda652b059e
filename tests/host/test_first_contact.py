"""`scripts/first_contact.py`: its programs run, in processes of their own, and find kernels in named archives alone."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from click import ClickException

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


def test_a_process_has_an_empty_cache_and_prints_json(scripts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from first_contact_steps import Start

    seen: list[str] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> "subprocess.CompletedProcess[str]":
        seen.append(env["XDG_CACHE_HOME"])
        assert env["CUDA_CACHE_DISABLE"] == "1" and list(Path(seen[-1]).iterdir()) == []
        assert not Start(**json.loads(command[-1])).archives
        return subprocess.CompletedProcess(command, 0, f'a warning\n{{"first step": {len(seen)}}}\n', "")

    monkeypatch.setattr(subprocess, "run", run)
    (row,) = scripts.measured("training", "bfloat16", (), rounds=3)
    assert (row.torch, row.cold, row.archived, row.asked) == (2, 5, None, None)
    assert len(set(seen)) == 6
    assert scripts.table([row]).row_count == 1


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
    assert scripts.archives_of(ARCH, built) == (str(built.resolve()),)
    with pytest.raises(ClickException, match="another architecture"):
        scripts.archives_of("sm_80", built)
