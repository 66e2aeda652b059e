"""Whether the version, the changelog and, for a release, its tag agree: `make check-release TAG=v0.1.0`. A release has
the addresses of the project as well, which are not known before it has a public home.

The version is that of `tilesmith.version`, and every other file asks for it there. While a version is being worked on,
the changelog has its entries under "Unreleased", and the version is newer than every release. The commit of a release
has nothing there, and a section of its own.
"""

import re
import sys
import tomllib
from collections.abc import Collection, Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from packaging.version import Version

from tilesmith.version import VERSION

_ROOT: Final = Path(__file__).resolve().parents[1]
CHANGELOG: Final = _ROOT / "CHANGELOG.md"
ADDRESSES: Final = ("Repository", "Documentation", "Issues", "Changelog")  # in pyproject.toml's [project.urls]
_UNRELEASED: Final = "Unreleased"
_SECTION: Final = re.compile(r"^## \[(?P<name>.+?)\](?: - (?P<date>.+))?$", re.MULTILINE)


class Section(NamedTuple):
    """One of the changelog's."""

    name: str
    date: str | None
    text: str


def main() -> None:
    tag = sys.argv[1] if len(sys.argv) > 1 else None
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    found = list(complaints(CHANGELOG.read_text(), VERSION, tag, project.get("urls", {})))
    if found:
        raise SystemExit("\n".join(found))
    print(f"{CHANGELOG.name} and version {VERSION} agree" + (f", and the tag {tag}" if tag else ""))


def sections(changelog: str) -> list[Section]:
    """The sections of a changelog, the newest first."""
    heads = list(_SECTION.finditer(changelog))
    ends = [head.start() for head in heads[1:]] + [len(changelog)]
    return [
        Section(head["name"], head["date"], changelog[head.end() : end].strip())
        for head, end in zip(heads, ends, strict=False)
    ]


def complaints(
    changelog: str, version: str, tag: str | None = None, addresses: Collection[str] = ADDRESSES
) -> Iterator[str]:
    """What does not agree, in sentences."""
    first, *releases = sections(changelog) or [Section("nothing", None, "")]
    if first[:2] != (_UNRELEASED, None):
        yield f"the changelog begins with {first.name}, and not with a section [{_UNRELEASED}]"
        return
    for release in releases:
        if not _is_date(release.date):
            yield f"the release {release.name} has no date, as 2026-12-01"
    for newer, older in pairwise(releases):
        if Version(newer.name) <= Version(older.name):
            yield f"the release {newer.name} stands above {older.name}"
    newest = releases[0].name if releases else None
    if tag is not None:
        if tag != f"v{version}":
            yield f"the tag is {tag}, and the version {version}"
        if newest != version:
            yield f"the newest release of the changelog is {newest or 'none'}, and not {version}"
        if first.text:
            yield f"the changelog has entries under [{_UNRELEASED}]"
        if missing := [name for name in ADDRESSES if name not in addresses]:
            yield f"pyproject.toml has no addresses of {', '.join(missing)} under [project.urls]"
    elif newest is not None and (Version(version) < Version(newest) or (first.text and version == newest)):
        yield f"{newest} is released: what changes now is for a newer version than {version}"


def _is_date(text: str | None) -> bool:
    try:
        date.fromisoformat(text or "")
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()
