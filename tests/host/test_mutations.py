"""scripts/mutations.py, which breaks lines of the sources one by one: that they are there, and the tests, too."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_line_is_there_once_and_so_are_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import mutations

    every = list(mutations.mutations())
    assert len({each.name for each in every}) == len(every)
    for each in every:
        text = (ROOT / "src" / "tilesmith" / each.file).read_text()
        assert mutations.changed(each, text) != text, each.name
        for test in each.tests:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}" in (ROOT / "tests" / "host" / file).read_text(), test
