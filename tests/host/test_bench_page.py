"""The page of a run, opened in a browser, and the picture."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from browser import Browser, headless
from made_up_results import RECORDED, made_up

from tilesmith.bench.axis import Axis
from tilesmith.bench.page import page
from tilesmith.bench.plots import write_png
from tilesmith.bench.results import OURS, TORCH, Competitor, Results, State
from tilesmith.core.errors import UnavailableError

pytestmark = pytest.mark.xdist_group("browser")  # one browser for all of these

SIZES = [pytest.param(1280, id="desktop"), pytest.param(390, id="phone")]
SCHEMES = [pytest.param(False, id="light"), pytest.param(True, id="dark")]
SHOWN = "Array.from(document.querySelectorAll('#entries tbody tr')).filter((row) => !row.hidden)"


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.read(RECORDED)


@pytest.fixture(scope="module")
def written(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "bench.html"
    path.write_text(page(results))
    return path


@pytest.fixture(scope="module")
def one_browser() -> Iterator[Browser]:
    with headless() as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Browser:
    one_browser.requests.clear()
    one_browser.complaints.clear()
    return one_browser


def choose(browser: Browser, **values: str) -> int:
    """Sets fields of the filter as a user does. Returns how many rows remain."""
    for name, value in values.items():
        browser.evaluate(f"""(() => {{
            const field = document.getElementById("filter").elements[{name!r}];
            field.value = {value!r};
            field.dispatchEvent(new Event("input", {{ bubbles: true }}));
        }})()""")
    return int(browser.evaluate(f"{SHOWN}.length"))


def column(browser: Browser, heading: str) -> list[str]:
    """The first lines of a column's cells, in the order of the rows."""
    cells: list[str] = browser.evaluate(f"""(() => {{
        const headings = Array.from(document.querySelectorAll("#entries thead th"));
        const index = headings.findIndex((each) => each.textContent === {heading!r});
        return {SHOWN}.map((row) => row.cells[index].innerText.split("\\n")[0].trim());
    }})()""")
    return cells


def sort(browser: Browser, heading: str) -> str | None:
    """Clicks a heading. Returns how the column says that it is sorted."""
    direction: str | None = browser.evaluate(f"""(() => {{
        const heading = Array.from(document.querySelectorAll("#entries thead th"))
            .find((each) => each.textContent === {heading!r});
        heading.querySelector("button").click();
        return heading.getAttribute("aria-sort");
    }})()""")
    return direction


def test_the_recorded_run_is_the_one_that_its_generator_makes(results: Results) -> None:
    assert results == made_up(rounds=12)


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("dark", SCHEMES)
def test_it_opens_without_complaint_asks_for_nothing_and_fits(
    browser: Browser, written: Path, width: int, dark: bool
) -> None:
    browser.open(written, width=width, dark=dark)
    assert browser.complaints == []
    assert browser.requests == [written.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate("document.querySelector('.tall').scrollWidth") > width  # the table scrolls in its own place


def test_the_watch_sees_what_it_watches_for(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "noisy.html"
    path.write_text('<img src="http://127.0.0.1:9/a.png"><script>console.error("loud"); undefined.name</script>')
    browser.open(path)
    assert browser.requests == [path.as_uri(), "http://127.0.0.1:9/a.png"]
    seen = " ".join(browser.complaints)
    assert "loud" in seen and "TypeError" in seen and "ERR_" in seen


def test_the_page_names_no_other_place(results: Results) -> None:
    text = page(results)
    assert "http:" not in text and "https:" not in text and "src=" not in text and "url(" not in text


@pytest.mark.parametrize("width", SIZES)
def test_the_plots_hold_every_entry(browser: Browser, written: Path, results: Results, width: int) -> None:
    browser.open(written, width=width)
    compared = sum(len(entry.opponents) for entry in results.entries)
    assert browser.evaluate("document.querySelectorAll('.bars .bar').length") == compared

    with_errors = sum(entry.norms(other) is not None for entry in results.entries for other in entry.opponents)
    assert browser.evaluate("document.querySelectorAll('.area a').length") == len(results.entries) + with_errors

    # Inside of their plot, all of them: in the first two, as others are folded.
    outside = """Array.from(document.querySelectorAll(".area")).slice(0, 2).flatMap((area) => {
        const around = area.getBoundingClientRect();
        return Array.from(area.querySelectorAll("use")).filter((point) => {
            const { left, right, top, bottom, width } = point.getBoundingClientRect();
            return !(width > 5 && left > around.left && right < around.right
                && top > around.top && bottom < around.bottom);
        }).map((point) => point.textContent);
    })"""
    assert browser.evaluate(outside) == []


@pytest.mark.parametrize("width", SIZES)
def test_many_products_have_plots_of_their_ratios(
    browser: Browser, results: Results, tmp_path: Path, width: int
) -> None:
    many = replace(results, entries=results.entries * 2)
    path = tmp_path / "many.html"
    path.write_text(page(many))
    browser.open(path, width=width)
    count = sum(TORCH in entry.opponents for entry in many.entries)
    for title in ("floating-point operations", "operations for each byte that must be moved"):
        marks = f"document.querySelectorAll('svg[aria-label=\"Ratio to torch against {title}\"] use').length"
        assert browser.evaluate(marks) == count
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert "Ratio to torch" not in page(results)  # bars are enough for a few


def test_bars_end_where_their_ratio_is(browser: Browser, written: Path, results: Results) -> None:
    browser.open(written)
    ratios = [entry.ratio(TORCH) for entry in results.entries if entry.suite == "seeds"]
    axis = Axis.around([0.8, 1.25, *ratios])
    ends: list[float] = browser.evaluate("""Array.from(document.querySelectorAll(".bars")[0].querySelectorAll(".bar"))
        .map((bar) => {
            const around = bar.getBoundingClientRect();
            return (bar.querySelector("rect.faster").getBoundingClientRect().right - around.left) / around.width;
        })""")
    assert ends == pytest.approx([axis.share(ratio) for ratio in ratios], abs=0.005)


def test_the_summary_has_the_means_and_the_counts(browser: Browser, written: Path, results: Results) -> None:
    browser.open(written)
    rows: list[list[str]] = browser.evaluate(
        "Array.from(document.querySelectorAll('.summary tbody tr')).map((row) => [row.cells[0], row.cells[1]"
        ".querySelector('b')].map((each) => each.textContent))"
    )
    assert rows == [[suite, f"{results.mean_ratio(suite, TORCH):.3f}"] for suite in results.suites]
    tile = browser.evaluate("document.querySelector('.tile').innerText.split(/\\s+/).join(' ')")
    verdicts = [entry.verdict(TORCH) for entry in results.entries if TORCH in entry.competitors]
    faster, same, slower = verdicts.count("faster"), verdicts.count("same"), verdicts.count("slower")
    assert tile == f"against torch {faster} faster {same} same {slower} slower"
    assert "65536x65536x65536" in browser.evaluate("document.querySelector('.notice').innerText")


def test_the_filter_works(browser: Browser, written: Path, results: Results) -> None:
    browser.open(written)
    assert choose(browser, text="8192 cluster") == sum(
        "8192" in f"{entry.shape} {entry.name}" and "cluster" in entry.plan for entry in results.entries
    )
    assert choose(browser, text="SQUARE", suite="small") == 3
    assert column(browser, "product") == ["128x128x128", "512x512x512", "2048x2048x2048"]
    assert choose(browser, dtype="float32") == 1
    assert browser.evaluate("document.querySelector('output').textContent") == "1 of 24"
    assert choose(browser, text="no such thing") == 0
    assert choose(browser, text="", suite="", dtype="") == len(results.entries)
    assert browser.complaints == []


def test_a_click_on_a_heading_sorts(browser: Browser, written: Path, results: Results) -> None:
    browser.open(written)
    ratios = sorted(entry.ratio(TORCH) for entry in results.entries if TORCH in entry.competitors)
    assert sort(browser, "torch by ours") == "descending"
    *shown, last = column(browser, "torch by ours")
    assert [each.split()[0] for each in shown] == [f"{ratio:.3f}" for ratio in reversed(ratios)]
    assert last == "none"
    assert sort(browser, "torch by ours") == "ascending"
    *shown, last = column(browser, "torch by ours")
    assert [each.split()[0] for each in shown] == [f"{ratio:.3f}" for ratio in ratios]
    assert last == "none"
    sort(browser, "type")
    assert column(browser, "type") == sorted((entry.kind for entry in results.entries), reverse=True)
    assert browser.evaluate("document.querySelectorAll('[aria-sort]').length") == 1


def test_a_point_leads_to_its_product_even_if_the_filter_hid_it(browser: Browser, written: Path) -> None:
    browser.open(written)
    assert choose(browser, suite="small") == 3
    title = browser.evaluate("""(() => {
        const link = document.querySelector(".area a");
        link.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
        return link.getAttribute("aria-label");
    })()""")
    assert title.startswith("4096x4096x4096 float32 (fp32): 22")
    assert browser.evaluate("document.querySelector('tr:target th').firstChild.textContent") == "4096x"
    assert browser.evaluate(f"{SHOWN}.length") == 24


def test_it_says_the_same_without_scripts(browser: Browser, written: Path, results: Results) -> None:
    browser.run_scripts(False)
    try:
        browser.open(written)
    finally:
        browser.run_scripts(True)
    assert browser.evaluate("document.getElementById('filter').hidden")
    assert browser.evaluate(f"{SHOWN}.length") == len(results.entries)
    assert browser.evaluate("document.querySelectorAll('.area use').length") > len(results.entries)
    assert browser.evaluate("document.querySelectorAll('thead button').length") == 0


def test_nothing_of_the_data_is_taken_for_markup(browser: Browser, results: Results, tmp_path: Path) -> None:
    evil = "</td><script>document.title = 'broken'</script><img src=x onerror=alert(1)>\"' onclick=alert(1) $style &lt;"

    entry = results.entries[0]
    spoilt = replace(
        replace(entry, suite=evil, name=evil, shape=evil, dtype=evil, accuracy=evil, why=evil, plan=evil),
        competitors={
            OURS: replace(entry.ours, precision=evil),
            evil: replace(entry.competitors[TORCH], precision=evil),
        },
        state=State(sm_mhz=(1, 2), power_watts=1.0, temperature_celsius=1, throttled=(evil,)),
    )
    environment = replace(
        results.environment, date=evil, command=evil, gpu=evil, driver=evil, host=evil, versions={evil: evil}
    )
    path = tmp_path / "evil.html"
    path.write_text(page(Results(environment, (spoilt, entry), (evil,))))
    browser.open(path)
    assert browser.complaints == [] and browser.requests == [path.as_uri()]
    assert browser.evaluate("document.title").startswith("Tilesmith on </td><script>")
    assert browser.evaluate("document.querySelectorAll('img, [onclick], [onerror]').length") == 0
    assert browser.evaluate("document.scripts.length") == 1
    assert browser.evaluate("document.querySelector('pre').textContent") == evil
    assert browser.evaluate("document.querySelector('tbody td').textContent.length") > 0
    assert choose(browser, suite=evil) == 1


def test_what_was_not_measured_is_said_to_be_missing(browser: Browser, results: Results, tmp_path: Path) -> None:
    entry = results.entries[0]
    alone = {OURS: Competitor("fp32", (1.0,), comp=float("nan"), norm=float("inf"))}
    bare = replace(entry, competitors=alone, state=None, roofline_ms=None, bound=None)
    path = tmp_path / "bare.html"
    path.write_text(page(replace(results, entries=(bare,), unfinished=())))
    browser.open(path)
    assert browser.complaints == []
    for heading in ("roofline", "error, ours", "in a graph", "clocks"):
        assert column(browser, heading) == ["none"]
    assert browser.evaluate("document.querySelectorAll('.notice').length") == 0

    path.write_text(page(replace(results, entries=())))
    browser.open(path)
    assert browser.complaints == []
    assert "Nothing was measured." in browser.evaluate("document.body.innerText")


@pytest.mark.parametrize("dark", SCHEMES)
def test_text_can_be_read_on_its_ground(browser: Browser, written: Path, dark: bool) -> None:
    browser.open(written, dark=dark)
    contrasts: dict[str, float] = browser.evaluate("""(() => {
        const light = (colour) => {
            const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255);
            const [r, g, b] = parts.map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const ground = (element) => {
            const colour = getComputedStyle(element).backgroundColor;
            return colour === "rgba(0, 0, 0, 0)" ? ground(element.parentElement) : colour;
        };
        const found = {};
        for (const name of ["h1", ".note", ".brand", "nav a", ".notice li", ".value.faster", ".value.same",
                            ".value.slower", "#entries small", ".none", ".throttled", "dt", "output", "th button"]) {
            const element = document.querySelector(name);
            found[name] = contrast(light(getComputedStyle(element).color), light(ground(element)));
        }
        found.ground = light(ground(document.body));
        return found;
    })()""")
    assert (contrasts.pop("ground") < 0.1) == dark
    assert {name: value for name, value in contrasts.items() if value < 4.5} == {}


def test_it_can_be_used_without_seeing_it(browser: Browser, written: Path) -> None:
    browser.open(written)
    counts = {
        "svg:not([aria-hidden]):not([aria-label])": 0,
        "th:not([scope])": 0,
        "[tabindex]:not([aria-label]):not([aria-labelledby])": 1,
    }
    for which, count in counts.items():
        assert browser.evaluate(f"document.querySelectorAll('{which}').length") == count, which
    assert browser.evaluate("document.documentElement.lang") == "en"
    assert browser.evaluate("document.title") == "Tilesmith on NVIDIA H200, 2026-11-16 12:00"
    ids: list[str] = browser.evaluate("Array.from(document.querySelectorAll('[id]')).map((each) => each.id)")
    assert len(ids) == len(set(ids))
    links = "document.querySelectorAll('[href^=\"#\"]')"
    targets = browser.evaluate(f"Array.from({links}).map(each => each.getAttribute('href'))")
    assert {target[1:] for target in targets} <= set(ids)


def test_a_missing_browser_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AssertionError, match="apt-get install chromium-headless-shell"), headless():
        pass


def test_the_picture_is_a_png(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "bench.png"
    write_png(results, path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    assert width == 1690 and height > width


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
