"""The README's chart is what the recorded runs say, and can be read."""

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from browser import headless

from tilesmith.bench.results import Results

ROOT = Path(__file__).parents[2]
RUNS = [Results.read(path) for path in sorted((ROOT / "docs" / "results").glob("*.json"))]
SVG = "{http://www.w3.org/2000/svg}"
GROUNDS = {"speed.svg": "#ffffff", "speed-dark.svg": "#0d1117"}  # of GitHub's pages


@pytest.fixture
def chart(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import speed_chart

    return speed_chart


def test_the_charts_are_what_the_recorded_runs_say(chart: ModuleType) -> None:
    found = {path.name: path.read_text() for path in (ROOT / "docs" / "assets").glob("speed*.svg")}
    assert found == chart.charts(RUNS, chart.programs()), "run `make results`"


def test_bars_are_as_long_as_ratios_and_begin_at_0(chart: ModuleType) -> None:
    drawn = ElementTree.fromstring(chart.charts(RUNS, chart.programs())["speed.svg"])
    bars = [(float(bar.attrib["x"]), float(bar.attrib["width"])) for bar in drawn.iter(f"{SVG}rect")]
    (one,) = {float(line.attrib["x1"]) for line in drawn.iter(f"{SVG}line") if line.attrib["class"] == "torch"}
    entries = [entry for run in RUNS for entry in run.entries]
    seeds = [
        entry.ratio("torch")
        for name in ("square", "large K", "transposed A", "tiny K", "irregular")
        for entry in entries
        if entry.suite == "fp32" and entry.name == name and not entry.variant
    ]
    odd = [entry.ratio("torch") for entry in entries if entry.suite == "half: odd" and entry.dtype == "bfloat16"]
    assert {x for x, _ in bars} == {bars[0][0]}
    ratios = [width / (one - bars[0][0]) for _, width in bars]
    assert ratios[:5] == pytest.approx(seeds, rel=1e-3)
    programs = chart.programs()
    assert ratios[7:9] == pytest.approx([each.torch_ms / each.ours_ms for each in programs], rel=1e-3)
    assert ratios[10] == pytest.approx(statistics.geometric_mean(odd), rel=1e-3)
    texts = ["".join(text.itertext()) for text in drawn.iter(f"{SVG}text")]
    assert "8 with odd strides" in texts and f"{min(odd):.2f}\u2013{max(odd):.2f}" in texts
    (environment,) = (run.environment for run in RUNS if "fp32" in run.suites)
    caption = " ".join(texts[-3:])
    dates = [environment.date, *(each.date for each in programs)]
    for fact in (environment.gpu, environment.versions["torch"], environment.commit, *dates):
        assert fact in caption


def test_commands_of_recorded_runs_name_no_place_of_a_machine() -> None:
    assert [run.environment.command for run in RUNS if "/" in run.environment.command] == []


def test_programs_have_the_figures_of_their_notes(chart: ModuleType) -> None:
    for each in chart.programs():
        note = (ROOT / each.note).read_text()
        assert f" {each.torch_ms} " in note and f" {each.ours_ms} " in note
        assert Path(each.command.split()[2]).name in note


@pytest.mark.xdist_group("browser")
def test_texts_do_not_meet_and_can_be_read() -> None:
    with headless() as browser:
        for name, ground in GROUNDS.items():
            browser.open(ROOT / "docs" / "assets" / name)
            assert browser.complaints == []
            texts: list[tuple[str, float, float, float, float, str]] = browser.evaluate("""
                Array.from(document.querySelectorAll("text"), (each) => {
                    const box = each.getBBox();
                    return [each.textContent, box.x, box.y, box.x + box.width, box.y + box.height,
                        getComputedStyle(each).fill];
                })""")
            width, height = browser.evaluate(
                "(({ width, height }) => [width, height])(document.rootElement.viewBox.baseVal)"
            )
            for i, (text, left, top, right, bottom, colour) in enumerate(texts):
                assert left >= 0 and right <= width and top >= 0 and bottom <= height, text
                met = [b[0] for b in texts[i + 1 :] if left < b[3] and b[1] < right and top < b[4] and b[2] < bottom]
                assert met == [], text
                red, green, blue = map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))
                assert contrast(f"#{red:02x}{green:02x}{blue:02x}", ground) >= 4.5, text


def test_bars_can_be_seen_and_told_apart(chart: ModuleType) -> None:
    for name, palette in chart.PALETTES.items():
        for colour in (palette.faster, palette.same, palette.slower):
            assert contrast(colour, GROUNDS[name]) >= 3


def contrast(a: str, b: str) -> float:
    def light(colour: str) -> float:
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((light(a), light(b)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda runs: [run for run in runs if "fp32" not in run.suites], "suite fp32, and there are 0"),
        (lambda runs: [*runs, *runs], "suite fp32, and there are 2"),
        (
            lambda runs: [
                replace(run, environment=replace(run.environment, gpu="L4")) if "fp32" in run.suites else run
                for run in runs
            ],
            "different machines",
        ),
    ],
    ids=["missing", "twice", "another GPU"],
)
def test_runs_that_make_no_chart_are_refused(
    chart: ModuleType, changed: Callable[[list[Results]], list[Results]], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        chart.charts(changed(RUNS), chart.programs())
