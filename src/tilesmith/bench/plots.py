"""The plots of a run as a picture: ratios, the roofline, errors. Needs matplotlib, which Tilesmith does not require."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tilesmith.bench.axis import Axis
from tilesmith.bench.results import FLOAT32_FLOOR, Change, Entry, Results
from tilesmith.core.errors import UnavailableError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final[dict[Change, str]] = {"faster": "#0b7a61", "same": "#626c79", "slower": "#b93a12"}
_MARKS: Final = {
    "bf16": ("o", "#1f6fd0"),
    "fp16": ("s", "#8e44c2"),
    "fp32": ("D", "#c25e00"),
    "tf32": ("v", "#b82f6c"),
    "fp64": ("^", "#5b7a12"),
}
_OTHER_MARK: Final = ("P", "#56606d")
_WIDTH: Final = 13.0  # inches, as all sizes here
_PLOT_HEIGHT: Final = 5.0
_BAR_HEIGHT: Final = 0.28
_TITLE_HEIGHT: Final = 1.0
_DOTS_PER_INCH: Final = 130


def write_png(results: Results, path: Path) -> None:
    """Writes one picture, and raises what `picture` does."""
    picture(results).savefig(path, dpi=_DOTS_PER_INCH, format="png")


def picture(results: Results) -> "Figure":
    """The ratios to each opponent, the roofline, and our errors against the first one that has any.

    Raises UnavailableError if matplotlib is missing, and ValueError if the run has no entries.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise UnavailableError("plots need matplotlib, which is not installed: pip install matplotlib") from missing
    if not results.entries:
        raise ValueError("the run has no entries to plot")

    compared = {other: _entries_with(results, other) for other in results.opponents}
    heights = [_TITLE_HEIGHT + _BAR_HEIGHT * len(entries) for entries in compared.values()]
    figure = Figure(figsize=(_WIDTH, sum(heights) + _PLOT_HEIGHT + _TITLE_HEIGHT), layout="constrained")
    figure.suptitle(f"Tilesmith on {results.environment.gpu}, {results.environment.date}", fontweight="bold")
    grid = figure.add_gridspec(len(compared) + 1, 2, height_ratios=[*heights, _PLOT_HEIGHT])
    for row, (other, entries) in enumerate(compared.items()):
        _bars(figure.add_subplot(grid[row, :]), entries, other)
    _roofline(figure.add_subplot(grid[-1, 0]), results)
    _errors(figure.add_subplot(grid[-1, 1]), results)
    return figure


def _entries_with(results: Results, other: str) -> list[Entry]:
    return [entry for entry in results.entries if other in entry.opponents]


def _bars(axes: "Axes", entries: list[Entry], other: str) -> None:
    positions = range(len(entries))
    ratios = [entry.ratio(other) for entry in entries]
    intervals = [entry.ratio_interval(other) for entry in entries]
    colours = [_COLOURS[entry.verdict(other)] for entry in entries]
    axes.set_xscale("log")
    axes.barh(positions, [ratio - 1 for ratio in ratios], left=1, color=colours, height=0.7)
    axes.hlines(positions, [low for low, _ in intervals], [high for _, high in intervals], color="black", linewidth=1)
    axes.axvline(1, color="black", linewidth=1.2)
    axes.set_yticks(positions, [f"{entry.suite}: {entry.label}" for entry in entries], fontsize=8)
    axes.set_ylim(len(entries) - 0.4, -0.6)  # the first on top
    axis = Axis.around([0.8, 1.25, *(end for interval in intervals for end in interval)], margin=0.1)
    _scale(axes, x=axis)
    for position, ratio, colour in zip(positions, ratios, colours, strict=True):
        axes.annotate(
            *(f"{ratio:.3f}", (1.01, position)),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
            color=colour,
        )
    axes.set_title(f"{other} by ours: more is better", loc="left", fontsize=10)


def _roofline(axes: "Axes", results: Results) -> None:
    peaks, bandwidth = results.peaks, results.bandwidth
    x, y = Axis.of_roofline(results)
    _points(axes, [(entry, entry.intensity, entry.tflops) for entry in results.entries])
    for precisions, peak in peaks.items():
        axes.plot([peak / bandwidth * 1e3 if bandwidth else x.low, x.high], [peak, peak], color="black", linewidth=1)
        beside = ("axes fraction", "data")  # where no point is
        axes.annotate(f"{precisions}: {peak:g}", (1.01, peak), xycoords=beside, va="center", fontsize=8)
    if bandwidth:
        bend = max(peaks.values()) / bandwidth * 1e3 if peaks else x.high
        axes.plot([x.low, bend], [x.low * bandwidth * 1e-3, bend * bandwidth * 1e-3], color="black", linewidth=1)
    _scale(axes, x=x, y=y)
    axes.set_xlabel("operations for each byte that must be moved")
    axes.set_ylabel("TFLOP/s")
    memory = "" if bandwidth is None else f", memory at {bandwidth / 1e3:.3g} TB/s"
    axes.set_title(f"Roofline{memory}", loc="left", fontsize=10)


def _errors(axes: "Axes", results: Results) -> None:
    found = {
        other: [(entry, *norms) for entry in _entries_with(results, other) if (norms := entry.norms(other))]
        for other in results.opponents
    }
    other, points = next(((other, points) for other, points in found.items() if points), ("", []))
    if not points:
        axes.set_axis_off()
        axes.set_title("No errors were taken", loc="left", fontsize=10)
        return
    axis = Axis.around([FLOAT32_FLOOR, *(norm for _, theirs, ours in points for norm in (theirs, ours))])
    axes.plot([axis.low, axis.high], [axis.low, axis.high], color="black", linewidth=1)
    axes.axhline(FLOAT32_FLOOR, color=_MARKS["fp32"][1], linestyle="--", linewidth=1, label="floor of float32, 3e-7")
    _points(axes, points)
    _scale(axes, x=axis, y=axis)
    axes.set_xlabel(f"error of {other} in norm")
    axes.set_ylabel("our error in norm")
    axes.set_title("Errors against float64: below the line ours is smaller", loc="left", fontsize=10)


def _points(axes: "Axes", points: list[tuple[Entry, float, float]]) -> None:
    for precision in dict.fromkeys(entry.ours.precision for entry, _, _ in points):
        chosen = [(x, y) for entry, x, y in points if entry.ours.precision == precision]
        mark, colour = _MARKS.get(precision, _OTHER_MARK)
        xs, ys = zip(*chosen, strict=True)
        axes.scatter(xs, ys, marker=mark, color=colour, s=30, alpha=0.85, label=precision, zorder=3)
    axes.legend(fontsize=8, loc="upper left")


def _scale(axes: "Axes", *, x: Axis, y: Axis | None = None) -> None:
    """Logarithmic axes as on the page, with the same labels."""
    axes.set(xscale="log", xlim=(x.low, x.high))
    axes.set_xticks(x.ticks, [f"{tick:g}" for tick in x.ticks])
    if y is not None:
        axes.set(yscale="log", ylim=(y.low, y.high))
        axes.set_yticks(y.ticks, [f"{tick:g}" for tick in y.ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
