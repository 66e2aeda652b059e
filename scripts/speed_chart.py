"""The README's chart, `docs/assets/speed.svg` and its dark variant, from the recorded runs in `docs/results`, and the
programs there.

    PYTHONPATH=src python3 scripts/speed_chart.py

`make results` runs it. Every figure is computed from the samples of the runs: nothing is written here but which entries
make a bar.
"""

import statistics
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tilesmith.bench.markup import Markup, element
from tilesmith.bench.results import BEHIND, Entry, Results

_DOCS: Final = Path(__file__).parents[1] / "docs"
_WIDTH: Final = 560  # of what the viewer scales: on a phone, to three fifths
_MARGIN: Final = 12
_BARS: Final = (204, 402)  # where 0 and the longest bar are
_VALUES: Final = (414, 548)  # where a ratio begins, and its range ends
_ROW: Final = 27
_BAR: Final = 16
_TOP: Final = 100  # of the first group
_HEADING: Final = 12  # from a group's heading to its first row
_GAP: Final = 34  # from a group's last row to the next heading
_LINE: Final = 19  # of the caption
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"
_TIMES: Final = "\u00d7"
_DASH: Final = "\u2013"
_TRAINING: Final = "Training in float32, a whole step"
_EXPLANATION: Final = (
    "Several products: the geometric mean, and a line from least to most.",
    "Graded values: slices of K from 2\u207b\u00b2\u2070 to 2\u00b2\u2070, the hard case.",
)


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours that can be told apart by those who see no red or no green, too."""

    ink: str
    soft: str
    grid: str
    faster: str
    same: str
    slower: str


PALETTES: Final = {
    "speed.svg": Palette("#1f2328", "#59636e", "#d8dee4", "#2f6fc4", "#8a94a0", "#c2600a"),
    "speed-dark.svg": Palette("#e6edf3", "#9aa4af", "#30363d", "#5e9df2", "#78838f", "#e8914a"),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """Some products of some suites, or all of them."""

    label: str
    suites: tuple[str, ...]
    wanted: Callable[[Entry], bool] = lambda entry: True


@dataclass(frozen=True, slots=True)
class Group:
    """Bars of one precision class."""

    title: str
    dtype: str
    opponent: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A whole program in float32, and how long a step of it takes: torch, and the same under an override."""

    label: str
    torch_ms: float
    ours_ms: float
    date: str
    gpu: str
    command: str
    note: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A group's ratios, by the labels of its bars."""

    title: str
    bars: dict[str, list[float]]


def _named(name: str, label: str) -> Bar:
    return Bar(label, ("fp32",), lambda entry: entry.name == name and not entry.variant)


_SEEDS: Final = {
    "square": f"4096 {_TIMES} 4096 {_TIMES} 4096",
    "large K": f"2048 {_TIMES} 8192 {_TIMES} 4096",
    "transposed A": "the same, A transposed",
    "tiny K": f"32768 {_TIMES} 64 {_TIMES} 32768",
    "irregular": f"8205 {_TIMES} 2949 {_TIMES} 5921",
}
GROUPS: Final = (
    Group(
        *("float32", "float32", "torch"),
        (
            *(_named(name, label) for name, label in _SEEDS.items()),
            Bar("{count} other shapes", ("fp32",), lambda entry: entry.name not in _SEEDS and not entry.variant),
            Bar("{count} with graded values", ("fp32",), lambda entry: entry.variant == "graded slices of K"),
        ),
    ),
    Group(
        *("TF32", "float32", "torch-tf32"),
        (Bar("{count} shapes", ("tf32: aligned", "tf32")),),
    ),
    Group(
        *("bfloat16", "bfloat16", "torch"),
        (
            Bar("{count} with odd strides", ("half: odd",)),
            Bar("{count} large ones", ("half: aligned",)),
            Bar("{count} skinny ones", ("half: skinny",)),
            Bar("{count} batches", ("half: batched",)),
            Bar(f"{{count}} small, 128\u00b3{_DASH}2048\u00b3", ("half: small",)),
        ),
    ),
)


def programs() -> list[Program]:
    """Those of `docs/results`."""
    return [Program(**each) for each in tomllib.loads((_DOCS / "results" / "programs.toml").read_text())["program"]]


def charts(runs: Sequence[Results], programs: Sequence[Program]) -> dict[str, str]:
    """The text of each file. ValueError if the runs lack a suite, have one twice, or are of different machines."""
    suites = dict.fromkeys(suite for group in GROUPS for bar in group.bars for suite in bar.suites)
    used = {suite: _run_of(suite, runs) for suite in suites}
    measured = [Measured(group.title, dict(_bars(group, used))) for group in GROUPS]
    measured.insert(1, Measured(_TRAINING, {each.label: [each.torch_ms / each.ours_ms] for each in programs}))
    facts = (*_facts(used.values()), f"Training: {', '.join(sorted({each.date for each in programs}))}, eager")
    if any(each.gpu not in facts[0] for each in programs):
        raise ValueError("the chart's programs ran on another GPU than its products")
    return {name: _chart(measured, facts, palette) + "\n" for name, palette in PALETTES.items()}


def _run_of(suite: str, runs: Iterable[Results]) -> Results:
    having = [run for run in runs if suite in run.suites]
    if len(having) != 1:
        raise ValueError(f"the chart needs one recorded run of suite {suite}, and there are {len(having)}")
    return having[0]


def _bars(group: Group, runs: Mapping[str, Results]) -> Iterator[tuple[str, list[float]]]:
    for bar in group.bars:
        entries = [entry for suite in bar.suites for entry in runs[suite].entries if entry.suite == suite]
        chosen = [entry for entry in entries if entry.dtype == group.dtype and bar.wanted(entry)]
        ratios = [entry.ratio(group.opponent) for entry in chosen if group.opponent in entry.opponents]
        yield bar.label.format(count=len(ratios)), ratios


def _facts(used: Iterable[Results]) -> tuple[str, str]:
    """Where the bars are from."""
    environments = [run.environment for run in used]
    machines = {(each.gpu, each.versions["torch"], each.versions["CUDA"]) for each in environments}
    if len(machines) != 1:
        raise ValueError(f"the chart's runs are of different machines: {sorted(machines)}")
    ((gpu, torch, cuda),) = machines
    dates = sorted({each.date for each in environments})
    commits = sorted({each.commit or "not recorded" for each in environments})
    return f"{gpu}, torch {torch}, CUDA {cuda}", f"{', '.join(dates)}, commit {', '.join(commits)}"


def _chart(measured: Sequence[Measured], facts: Iterable[str], palette: Palette) -> Markup:
    longest = max(ratio for group in measured for ratios in group.bars.values() for ratio in ratios)
    begin, end = _BARS

    def across(ratio: float) -> float:
        return begin + (end - begin) * ratio / longest

    marks = range(1, int(longest) + 1)
    y = _TOP
    drawn = [element("text", "torch = 1", x=across(1), y=y, class_="tick one")]
    said = []
    for group in measured:
        drawn.append(element("text", group.title, x=_MARGIN, y=y, class_="class"))
        y += _HEADING
        top, bottom = y, y + _ROW * len(group.bars)
        drawn += (_upright(across(mark), top, bottom, "grid") for mark in marks[1:])
        for label, ratios in group.bars.items():
            drawn += _row(label, ratios, y, across)
            said.append(f"{group.title}, {label}: {_value(statistics.geometric_mean(ratios))}")
            y += _ROW
        drawn.append(_upright(across(1), top, bottom, "torch"))
        y += _GAP
    y -= _GAP - 18
    drawn += (element("text", f"{mark}{_TIMES}", x=across(mark), y=y, class_="tick") for mark in marks)
    for line in (*_EXPLANATION, *facts):
        drawn.append(element("text", line, x=_MARGIN, y=y + 34, class_="caption"))
        y += _LINE
    height = y + 28
    children = (
        element("title", "Speed of Tilesmith\u2019s matrix products relative to torch"),
        element("desc", "; ".join(said)),
        element("style", Markup(_style(palette))),
        element("text", "Matrix products, times as fast as torch", x=_MARGIN, y=32, class_="head"),
        element("text", "Within the same precision class; longer is better.", x=_MARGIN, y=56, class_="soft"),
        *drawn,
    )
    return element(
        "svg",
        *(Markup(f"{child}\n") for child in children),  # a line each, so that a change can be read
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {height}",
        width=_WIDTH,
        height=height,
        role="img",
    )


def _upright(x: float, top: float, bottom: float, kind: str) -> Markup:
    return element("line", x1=x, x2=x, y1=top, y2=bottom, class_=kind)


def _row(label: str, ratios: Sequence[float], y: float, across: Callable[[float], float]) -> Iterator[Markup]:
    mean, least, most = statistics.geometric_mean(ratios), min(ratios), max(ratios)
    kind = "slower" if mean < BEHIND else "same" if mean < 1 / BEHIND else "faster"
    middle = y + _ROW / 2
    baseline = middle + 5.5
    begin, end = _VALUES
    length = across(mean) - across(0)
    yield element("text", label, x=_MARGIN, y=baseline)
    yield element("rect", x=across(0), y=middle - _BAR / 2, width=length, height=_BAR, rx=2, class_=kind)
    if len(ratios) > 1:
        yield element("line", x1=across(least), x2=across(most), y1=middle, y2=middle, class_="range")
        yield element("text", f"{least:.2f}{_DASH}{most:.2f}", x=end, y=baseline, class_="least")
    yield element("text", _value(mean), x=begin, y=baseline, class_="value")


def _value(ratio: float) -> str:
    return f"{ratio:.{1 if ratio >= 2 else 2}f}{_TIMES}"


def _style(palette: Palette) -> str:
    return (
        f"text{{font:15px {_FONT};fill:{palette.ink};font-variant-numeric:tabular-nums}}"
        f".head{{font-size:21px;font-weight:600}}"
        f".class{{font-size:16px;font-weight:600}}"
        f".soft,.tick,.caption{{fill:{palette.soft}}}"
        f".tick,.least,.caption{{font-size:13px}}"
        f".tick{{text-anchor:middle}}"
        f".one{{fill:{palette.ink};font-weight:600}}"
        f".value{{font-weight:600}}"
        f".least{{fill:{palette.soft};text-anchor:end}}"
        f".grid{{stroke:{palette.grid}}}"
        f".torch,.range{{stroke:{palette.ink};stroke-width:1.5}}"
        f".faster{{fill:{palette.faster}}}.same{{fill:{palette.same}}}.slower{{fill:{palette.slower}}}"
    )


def main() -> None:
    runs = [Results.read(path) for path in sorted((_DOCS / "results").glob("*.json"))]
    (_DOCS / "assets").mkdir(exist_ok=True)
    for name, text in charts(runs, programs()).items():
        (_DOCS / "assets" / name).write_text(text)


if __name__ == "__main__":
    main()
