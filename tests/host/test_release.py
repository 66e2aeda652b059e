"""How a release is made: one version, a changelog that agrees with it, and workflows that name what there is."""

import os
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tilesmith.version import VERSION

ROOT: Final = Path(__file__).parents[2]
WORKFLOWS: Final = sorted((ROOT / ".github/workflows").iterdir())
RELEASED: Final = (
    "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-31\n\n- More.\n\n## [0.1.0] - 2026-12-01\n\n- All.\n"
)
CHANGED: Final = RELEASED.replace("[Unreleased]\n", "[Unreleased]\n\n- News.\n")


@pytest.fixture
def check_release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import check_release

    return check_release


def test_the_changelog_and_the_version_agree(check_release: ModuleType) -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert list(check_release.complaints(text, VERSION)) == []
    assert check_release.sections(text)[0].name == "Unreleased"


@pytest.mark.parametrize(
    ("changelog", "version", "tag", "complaints"),
    [
        (CHANGED, "0.3.0", None, []),
        (RELEASED, "0.2.0", None, []),
        (RELEASED, "0.2.0", "v0.2.0", []),
        (CHANGED, "0.2.0", None, ["0.2.0 is released: what changes now is for a newer version than 0.2.0"]),
        (RELEASED, "0.1.9", None, ["0.2.0 is released: what changes now is for a newer version than 0.1.9"]),
        (RELEASED, "0.2.0", "v0.3.0", ["the tag is v0.3.0, and the version 0.2.0"]),
        (RELEASED, "0.3.0", "v0.3.0", ["the newest release of the changelog is 0.2.0, and not 0.3.0"]),
        (CHANGED, "0.2.0", "v0.2.0", ["the changelog has entries under [Unreleased]"]),
        (RELEASED.replace("2026-12-01", "soon"), "0.2.0", None, ["the release 0.1.0 has no date, as 2026-12-01"]),
        (RELEASED.replace("0.1.0", "0.10.0"), "0.2.0", None, ["the release 0.2.0 stands above 0.10.0"]),
        (
            "## [0.1.0] - 2026-12-01\n",
            "0.1.0",
            None,
            ["the changelog begins with 0.1.0, and not with a section [Unreleased]"],
        ),
        ("", "0.1.0", None, ["the changelog begins with nothing, and not with a section [Unreleased]"]),
    ],
)
def test_what_does_not_agree_is_said(
    changelog: str, version: str, tag: str | None, complaints: list[str], check_release: ModuleType
) -> None:
    assert list(check_release.complaints(changelog, version, tag)) == complaints


def test_a_release_says_where_the_project_is(check_release: ModuleType) -> None:
    changelog = "## [Unreleased]\n\n## [1.0] - 2026-12-01\n\n- One.\n"
    known = ("Repository", "Changelog")
    assert list(check_release.complaints(changelog, "1.0", "v1.0", known)) == [
        "pyproject.toml has no addresses of Documentation, Issues under [project.urls]"
    ]
    assert list(check_release.complaints(changelog, "1.0", "v1.0", check_release.ADDRESSES)) == []
    assert list(check_release.complaints(changelog, "1.0", None, ())) == []


def test_the_version_stands_in_one_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tilesmith.version.VERSION"}
    stated = re.compile(r"^version:|tilesmith[ =v-]+\d+\.\d+\.\d+", re.MULTILINE)
    texts = [path for pattern in ("*.md", "*.cff", "*.yml", "docs/*.md", "Makefile") for path in ROOT.glob(pattern)]
    assert ROOT / "README.md" in texts
    # A recorded run says with which version it was made.
    assert [path.name for path in texts if stated.search(path.read_text())] == ["results.md"]


def steps(job: dict[str, Any]) -> list[str]:
    return [step.get("run") or step["uses"] for step in job["steps"]]


def targets() -> set[str]:
    """What `make` can be asked for."""
    rules = re.findall(r"^([\w -]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return {name for rule in rules for name in rule.split()}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/release.md"])
def test_every_target_that_is_named_is_there(name: str) -> None:
    named = re.findall(r"(?:`|^    )make ([a-z][a-z-]*)", (ROOT / name).read_text(), re.MULTILINE)
    assert named and set(named) <= targets()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_command_of_a_workflow_is_there(path: Path) -> None:
    known = targets()
    commands = [step["run"] for job in load(path)["jobs"].values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        program, *arguments = command.split()
        if program == "make":
            named = {argument for argument in arguments if "=" not in argument}
            assert named and named <= known, command
        else:
            assert os.access(ROOT / program, os.X_OK), command


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def test_a_tag_is_checked_tested_and_built_before_it_is_published_without_a_password() -> None:
    workflow = load(ROOT / ".github/workflows/release.yml")
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert [step for step in steps(build) if step.startswith("make")] == [
        'make check-release TAG="$GITHUB_REF_NAME"',
        "make test",
        "make sdist wheel",
        "make check-dist",
    ]
    assert steps(build)[-1].startswith("actions/upload-artifact@")
    assert publish["needs"] == "build"
    assert workflow["permissions"] == {"contents": "read"}
    assert publish["permissions"] == {"id-token": "write"}
    assert [step.partition("@")[0] for step in steps(publish)] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]


def test_what_must_hold_is_run_for_every_change() -> None:
    workflow = load(ROOT / ".github/workflows/ci.yml")
    assert set(workflow["on"]) == {"push", "pull_request"}
    assert steps(workflow["jobs"]["test"])[-1] == ".ci/run"


def test_what_is_supported_is_what_the_package_allows_and_the_lanes_test() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = {Requirement(each).name: str(Requirement(each).specifier) for each in project["dependencies"]}
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", (ROOT / "docs/release.md").read_text(), re.MULTILINE)
    stated = {what: (ranges.partition(":")[0], tested) for what, ranges, tested in rows}
    assert stated["Python"][0] == project["requires-python"]
    assert stated["torch"][0] == allowed["torch"]
    cuda = {str(SpecifierSet(stated["CUDA"][0])), allowed["cuda-bindings"], allowed["nvidia-cuda-nvrtc"]}
    assert len(cuda) == 1
    oldest, *others = map(Version, stated["torch"][1].split(", "))
    assert oldest == Version(allowed["torch"].removeprefix(">=")) and all(other > oldest for other in others)
    pinned = re.findall(r"^torch==(.+)$", (ROOT / "requirements-dev.txt").read_text(), re.MULTILINE)
    assert [Version(each) in others for each in pinned] == [True]
    by_default = re.findall(r"^TORCH := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [Version(each) for each in by_default] == [oldest]
