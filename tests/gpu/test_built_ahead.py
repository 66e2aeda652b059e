"""What `tilesmith build` made is all that products need: NVRTC is not asked for anything, and the bits are the same."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import products_of_every_kind
import pytest

from tilesmith.core.device import installed, named
from tilesmith.runtime import archive

PROGRAM = Path(products_of_every_kind.__file__)
TESTS = PROGRAM.parents[1]
SECONDS = 600


@pytest.mark.parametrize("kind", products_of_every_kind.KINDS)
def test_built_ahead_products_need_no_nvrtc_and_have_the_bits_of_compiled_ones(kind: str, tmp_path: Path) -> None:
    """To build all kernels would take minutes: if there is no whole archive here, one is built of those that this
    program has, which must be in the catalogue."""
    arch = installed(0).arch
    users = Path("tilesmith") / archive.users_file(arch).name
    with_archive, without = tmp_path / "with an archive", tmp_path / "without"
    for cache in (with_archive, without):
        (cache / "tilesmith").mkdir(mode=0o700, parents=True)
    file = with_archive / users
    whole = whole_archive(arch)
    if whole is not None:
        file.symlink_to(whole.path.resolve())
    compiled = digests(without, kind, "compiled", *([] if whole is not None else [str(file)]))
    built_ahead = digests(with_archive, kind, "built_ahead")
    assert built_ahead == compiled
    assert len(compiled) >= 12
    assert list(file.parent.iterdir()) == [file]


def whole_archive(arch: str) -> archive.Archive | None:
    """One that is installed, with every kernel that these sources have."""
    build = importlib.import_module("tilesmith.cli.build_run")
    kernels = len(build._kernels(named(arch), [], None))
    return next((each for each in archive.installed(arch) if each.is_current and len(each) >= kernels), None)


def digests(cache: Path, *arguments: str) -> dict[str, str]:
    """What the program prints, in a new process with this cache."""
    folders = (TESTS.parent / "src", TESTS / "gpu", TESTS / "support")
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found
