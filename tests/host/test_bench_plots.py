"""The picture of a run, and the numbers that its plots and the page's are drawn by."""

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from made_up_results import RECORDED
from matplotlib.text import Annotation

from tilesmith.bench.axis import Axis
from tilesmith.bench.plots import picture, write_png
from tilesmith.bench.results import Results
from tilesmith.core.errors import UnavailableError


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.read(RECORDED)


def test_the_picture_is_a_png(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "bench.png"
    write_png(results, path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    assert width == 1690 and height > width


def test_no_label_of_the_picture_covers_a_point(results: Results) -> None:
    texts = [text for axes in picture(results).axes for text in axes.texts if isinstance(text, Annotation)]
    assert "bf16, fp16: 989" in [text.get_text() for text in texts]
    assert {text.xyann[0] for text in texts} == {1.01}  # right of the plots


def test_a_picture_of_nothing_is_refused(results: Results, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no entries"):
        write_png(replace(results, entries=()), tmp_path / "bench.png")


def test_without_matplotlib_it_says_how_to_get_it(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnavailableError, match="pip install matplotlib"):
        write_png(results, tmp_path / "bench.png")


def test_the_roofs_are_those_of_the_rooflines(results: Results) -> None:
    assert results.peaks == {"bf16, fp16": 989.0, "fp32": 330.0, "fp64": 67.0}
    assert results.bandwidth == pytest.approx(4800)
    unknown = replace(results, entries=tuple(replace(e, roofline_ms=None, bound=None) for e in results.entries))
    assert unknown.peaks == {} and unknown.bandwidth is None


def test_an_axis_has_a_few_round_labels_that_do_not_meet() -> None:
    for low, high in [(0.79, 1.27), (0.33, 1.3), (0.7, 5.4), (1e-7, 2e-3), (1e-16, 1.0), (0.3, 9000.0), (2.2, 2.9)]:
        axis = Axis(low, high)
        shares = [axis.share(tick) for tick in axis.ticks]
        assert len(shares) >= 2
        assert all(b - a >= 0.1 for a, b in pairwise(shares))
