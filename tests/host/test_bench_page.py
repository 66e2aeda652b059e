"""The page of runs, opened in a browser, and the picture."""

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from browser import Browser, headless
from made_up_results import RECORDED, made_up

from tilesmith.bench.axis import Axis
from tilesmith.bench.page import page
from tilesmith.bench.results import OURS, TORCH, Competitor, Results, State

pytestmark = pytest.mark.xdist_group("browser")  # one browser for all of these

SIZES = [pytest.param(1400, id="desktop"), pytest.param(390, id="phone")]
SCHEMES = [pytest.param(False, id="light"), pytest.param(True, id="dark")]
RUNS = [Results.read(path) for path in sorted((Path(__file__).parents[2] / "docs" / "results").glob("*.json"))]
SHOWN = "Array.from(document.querySelectorAll('#entries tbody tr')).filter((row) => !row.hidden)"


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.read(RECORDED)


@pytest.fixture(scope="module")
def written(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "bench.html"
    path.write_text(page([results]))
    return path


@pytest.fixture(scope="module")
def of_all_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the recorded runs."""
    path = tmp_path_factory.mktemp("page") / "results.html"
    path.write_text(page(RUNS))
    return path


@pytest.fixture(scope="module")
def of_many(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of so many products that it has plots of their ratios."""
    path = tmp_path_factory.mktemp("page") / "many.html"
    path.write_text(page([results, results]))
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


def summary(browser: Browser) -> list[list[str]]:
    """The cells of the table of means."""
    rows: list[list[str]] = browser.evaluate(
        "Array.from(document.querySelectorAll('.summary tbody tr'))"
        ".map((row) => Array.from(row.cells, (each) => each.textContent))"
    )
    return rows


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
    text = page([results, *RUNS])
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
@pytest.mark.parametrize("which", ["of_many", "of_all_runs"])
def test_labels_do_not_meet(browser: Browser, width: int, which: str, request: pytest.FixtureRequest) -> None:
    browser.open(request.getfixturevalue(which), width=width)
    count, meetings = browser.evaluate("""(() => {
        for (const each of document.querySelectorAll("details")) each.open = true;
        const labels = (plot) => Array.from(plot.querySelectorAll("text, .x-title, .y-title"))
            .map((each) => [each.textContent, each.getBoundingClientRect()]).filter(([, box]) => box.width > 0);
        const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
        const plots = Array.from(document.querySelectorAll(".plot, .bars .scale")).map(labels);
        return [plots.flat().length, plots.flatMap((boxes) => boxes.flatMap(([name, a], i) =>
            boxes.slice(i + 1).filter(([, b]) => meet(a, b)).map(([other]) => [name, other])))];
    })()""")
    assert count > 50 and meetings == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width


def test_labels_of_roofs_that_are_close_do_not_meet(browser: Browser, results: Results, tmp_path: Path) -> None:
    near = {"fp32": 980.0, "bf16": 989.0, "fp16": 1000.0, "fp64": 1.0}
    entries = [each for each in results.entries if each.bound == "compute"]
    moved = (replace(each, roofline_ms=each.flops / near[each.ours.precision] * 1e-9) for each in entries)
    path = tmp_path / "near.html"
    path.write_text(page([replace(results, entries=tuple(moved))]))
    browser.open(path)
    tops: list[float] = browser.evaluate(
        "Array.from(document.querySelectorAll('.levels text')).map((each) => each.getBoundingClientRect().top)"
    )
    assert len(tops) == 4 and all(b - a >= 16 for a, b in pairwise(tops))


def test_many_products_have_plots_of_their_ratios(browser: Browser, of_many: Path, results: Results) -> None:
    browser.open(of_many)
    count = 2 * sum(TORCH in entry.opponents for entry in results.entries)
    for title in ("floating-point operations", "operations for each byte that must be moved"):
        marks = f"document.querySelectorAll('svg[aria-label=\"Ratio to torch against {title}\"] use').length"
        assert browser.evaluate(marks) == count
    assert "Ratio to torch" not in page([results])  # bars are enough for a few


def test_several_runs_are_one_page_that_says_where_each_is_from(browser: Browser, of_all_runs: Path) -> None:
    browser.open(of_all_runs)
    newest_first = sorted(RUNS, key=lambda run: run.environment.date, reverse=True)
    for i, run in enumerate(newest_first):
        text = browser.evaluate(f"document.getElementById('run-{i}').innerText")
        environment = run.environment
        for said in (environment.gpu, environment.date, environment.commit or "not recorded", environment.command):
            assert said in text
    assert browser.evaluate(f"{SHOWN}.length") == sum(len(run.entries) for run in RUNS)


def test_values_that_are_harder_have_a_mean_of_their_own(browser: Browser, of_all_runs: Path) -> None:
    browser.open(of_all_runs)
    means = {" ".join(row[0].split()): row[1] for row in summary(browser)}
    entries = [entry for run in RUNS for entry in run.entries if entry.suite == "fp32"]
    for variant, words in {"": "", "graded slices of K": ", graded slices of K"}.items():
        mean = statistics.geometric_mean(entry.ratio(TORCH) for entry in entries if entry.variant == variant)
        assert means[f"fp32 float32 (fp32){words}, against torch"] == f"{mean:.3f}"


def test_the_headline_has_the_main_result_before_all_else(browser: Browser, written: Path, results: Results) -> None:
    browser.open(written)
    half = statistics.geometric_mean(e.ratio(TORCH) for e in results.entries if e.dtype == "bfloat16")
    lead = browser.evaluate("document.querySelector('.lead').innerText")
    assert f"bfloat16 {half:.2f} times as fast as torch; " in lead
    counts = Counter(entry.verdict(TORCH) for entry in results.entries if entry.opponents)
    assert lead.startswith(f"{counts.total()} products")
    assert lead.endswith(f"{counts['faster']} are faster, {counts['same']} the same and {counts['slower']} slower.")
    before = "document.querySelector('.lead').compareDocumentPosition(document.querySelector('.notice'))"
    assert browser.evaluate(f"{before} & Node.DOCUMENT_POSITION_FOLLOWING")


def test_the_columns_that_matter_are_seen_on_a_phone(browser: Browser, written: Path) -> None:
    browser.open(written, width=390)
    headings = browser.evaluate("""(() => {
        const edge = document.querySelector(".tall").getBoundingClientRect().right;
        return Array.from(document.querySelectorAll("#entries thead th, .summary thead th"))
            .filter((each) => each.getBoundingClientRect().right <= edge).map((each) => each.textContent);
    })()""")
    assert headings == ["suite", "mean", "products", "product", "ratio"]


def test_a_time_of_another_precision_class_stands_without_a_ratio(browser: Browser, written: Path) -> None:
    browser.open(written)
    row = browser.evaluate("document.getElementById('entry-0').innerText")
    assert "torch tf32: tf32, not compared" in row
    assert browser.evaluate("document.body.textContent.match(/against torch tf32/i)") is None


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
    assert summary(browser)[0][:2] == [
        "seeds float32 (fp32), against torch",
        f"{results.mean_ratio('seeds', TORCH):.3f}",
    ]
    tile = browser.evaluate("document.querySelector('.tile').innerText.split(/\\s+/).join(' ')")
    half = [entry for entry in results.entries if entry.dtype == "bfloat16"]
    ratios = [entry.ratio(TORCH) for entry in half]
    counts = Counter(entry.verdict(TORCH) for entry in half)
    assert tile == (
        f"bfloat16 against torch {statistics.geometric_mean(ratios):.2f}\u00d7 "
        f"{len(half)} products, {min(ratios):.2f} to {max(ratios):.2f} "
        f"{counts['faster']} faster {counts['same']} same {counts['slower']} slower"
    )
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
    assert sort(browser, "ratio") == "descending"
    *shown, last = column(browser, "ratio")
    assert [each.split()[0] for each in shown] == [f"{ratio:.3f}" for ratio in reversed(ratios)]
    assert last == "none"
    assert sort(browser, "ratio") == "ascending"
    *shown, last = column(browser, "ratio")
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
    path.write_text(page([Results(environment, (spoilt, entry), (evil,))]))
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
    path.write_text(page([replace(results, entries=(bare,), unfinished=())]))
    browser.open(path)
    assert browser.complaints == []
    for heading in ("ratio", "theirs", "error", "roofline", "in a graph", "clocks"):
        assert column(browser, heading) == ["none"]
    assert browser.evaluate("document.querySelectorAll('.notice').length") == 0

    path.write_text(page([replace(results, entries=())]))
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
        "[tabindex]:not([aria-label]):not([aria-labelledby])": 0,
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
