"""What is released: an sdist with all that git tracks, and its wheel, which has all that the package reads."""

import configparser
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from packaging.metadata import Metadata

from tilesmith.version import VERSION

ROOT: Final = Path(__file__).parents[2]


class Distributions(NamedTuple):
    sdist: Path
    wheel: Path


def tracked(*folders: str) -> set[str]:
    """What git has in the tree."""
    return {path for path in run(ROOT, "git", "ls-files", "-z", *folders).split("\0") if (ROOT / path).is_file()}


def run(folder: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def build(folder: Path, what: str) -> None:
    """As a frontend does it, without an environment of its own."""
    call = f"from setuptools.build_meta import build_{what} as build; build('dist')"
    run(folder, sys.executable, "-c", call)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The sdist of a copy of the tree, where somebody has built an archive of kernels; and the sdist's wheel."""
    tree, elsewhere = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("elsewhere")
    for path in tracked():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, tree / path)
    archives = tree / "src/tilesmith/archives"
    archives.mkdir(exist_ok=True)
    (archives / "sm_90a.archive").write_bytes(b"kernels")
    build(tree, "sdist")
    (sdist,) = (tree / "dist").iterdir()
    with tarfile.open(sdist) as packed:
        packed.extractall(elsewhere, filter="data")
    (unpacked,) = elsewhere.iterdir()
    build(unpacked, "wheel")
    (wheel,) = (unpacked / "dist").iterdir()
    return Distributions(sdist, wheel)


@pytest.mark.xdist_group("package")
def test_the_sdist_has_what_git_tracks_and_no_compiled_kernels(made: Distributions) -> None:
    with tarfile.open(made.sdist) as packed:
        names = {member.name.partition("/")[2] for member in packed.getmembers() if member.isfile()}
    written = {name for name in names if name in ("PKG-INFO", "setup.cfg") or "egg-info/" in name}
    assert names - written == tracked()


@pytest.mark.xdist_group("package")
def test_a_wheel_of_the_sdist_has_every_file_of_the_package(made: Distributions) -> None:
    with zipfile.ZipFile(made.wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert names == {path.removeprefix("src/") for path in tracked("src/tilesmith")}
    assert {Path(name).suffix for name in names} >= {".cu", ".cuh", ".h", ".cpp", ".toml", ".typed", ".in", ".html"}


@pytest.mark.xdist_group("package")
def test_the_metadata_are_valid_and_say_the_version(made: Distributions) -> None:
    folder = made.wheel.name.removesuffix("-py3-none-any.whl")
    with zipfile.ZipFile(made.wheel) as packed:
        metadata = Metadata.from_email(packed.read(f"{folder}.dist-info/METADATA"))  # raises for what is not valid
        entry_points = packed.read(f"{folder}.dist-info/entry_points.txt").decode()
    assert folder == f"tilesmith-{VERSION}"
    assert str(metadata.version) == VERSION
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description == (ROOT / "README.md").read_text()
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.keywords and "GEMM" in metadata.keywords
    assert metadata.classifiers and metadata.requires_python
    named = {each.rpartition(" ")[2] for each in metadata.classifiers if ":: Python :: 3." in each}
    assert "3.11" in named and all(version in metadata.requires_python for version in named)
    found = configparser.ConfigParser()
    found.read_string(entry_points)
    assert {name: dict(found[name]) for name in found.sections()} == {
        "console_scripts": {"tilesmith": "tilesmith.cli:main"},
        "torch_dynamo_backends": {"tilesmith": "tilesmith.inductor.backend:backend"},
    }
