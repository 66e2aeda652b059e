"""What became faster and what became slower from one run to another."""

import math
import statistics
from dataclasses import dataclass
from typing import Final

from tilesmith.bench.results import TORCH, Change, Entry, Environment, Results, change

_SCATTERS: Final = 4  # a change must exceed the scatter between the runs so many times: there are many entries
_NORMAL: Final = 1.4826  # a standard deviation by a median deviation
_WORTH_A_WORD: Final = 0.01  # a smaller drift of torch's times is not shown


@dataclass(frozen=True, slots=True)
class Compared:
    """One product in both runs."""

    suite: str
    product: str  # shape, type and accuracy
    old_ms: float
    new_ms: float
    time: float  # new by old
    relative: float | None  # the same of our time by torch's; None where torch is no yardstick
    noise: float  # what both must exceed, as a logarithm
    change: Change
    throttled: bool  # in one of the runs

    def __str__(self) -> str:
        relative = "" if self.relative is None else f", by torch's {_percent(self.relative)}"
        throttled = ", clocks held down" if self.throttled else ""
        times = f"{self.old_ms:.4g} -> {self.new_ms:.4g} ms"
        return f"{self.suite}: {self.product}: {times} ({_percent(self.time)}{relative}{throttled})"


@dataclass(frozen=True, slots=True)
class Difference:
    """Something about where and how the runs were made that is not the same."""

    what: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that can be said of two runs."""

    regression: bool
    compared: tuple[Compared, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    differences: tuple[Difference, ...]
    drifts: dict[str, float]  # torch's time, new by old, over the products of one bound; none if it is no yardstick
    warnings: tuple[str, ...]

    def describe(self) -> str:
        """What a terminal shows, the worst last."""
        lines = [f"{each.what}: {each.old} -> {each.new}" for each in self.differences]
        lines += [
            f"torch's own times changed by {_percent(drift)} where products are {bound}: "
            "a change of ours counts only if it is one against torch too"
            for bound, drift in self.drifts.items()
            if abs(math.log(drift)) > _WORTH_A_WORD
        ]
        lines += [f"only in the old run: {name}" for name in self.only_old]
        lines += [f"only in the new run: {name}" for name in self.only_new]
        lines += [f"warning: {warning}" for warning in self.warnings]
        faster, same, slower = self.changed("faster"), self.changed("same"), self.changed("slower")
        lines += [f"faster: {each}" for each in faster]
        lines += [f"slower: {each}" for each in slower]
        counts = f"{len(faster)} faster, {len(same)} the same, {len(slower)} slower"
        verdict = "a regression" if self.regression else "no regression"
        return "\n".join([*lines, f"{len(self.compared)} products compared: {counts}: {verdict}"])

    def changed(self, kind: Change) -> tuple[Compared, ...]:
        return tuple(each for each in self.compared if each.change == kind)


def compare(old: Results, new: Results) -> Comparison:
    """Holds a run against an earlier one.

    A product is slower only if two numbers say so. One is our time: both medians, their intervals and the noise, as
    `results.change` has it. The other is our time divided by torch's of the same run. Our time alone would blame us
    for a card that is slower as a whole, as the next one of its kind is by 2 or 3 percent. The ratio alone would blame
    us for torch: its times have been seen to move by 4 percent between two runs in which ours did not. Where the two
    do not agree, the change is not ours, and the product counts as the same. The same goes for faster. The price: when
    the card becomes faster, a product of ours may become slower by as much unnoticed. `drifts` says how much that is.

    Where an entry has no time of torch's, as with integers, what torch's others did stands in for it: those of the
    same bound if there are any. If the runs have different versions of torch, torch is no yardstick: our time alone
    decides, with a warning.

    Both numbers must exceed the noise of the entry, the larger of the two runs', and four times the scatter of torch's
    times between the runs: torch's code is the same in both, so whatever moves it there moves ours as well.

    Raises ValueError if the runs have no product in common.
    """
    before, after = _by_label(old), _by_label(new)
    pairs = [(entry, after[label]) for label, entry in before.items() if label in after]
    if not pairs:
        raise ValueError("the two runs have no product in common")
    differences = _differences(old.environment, new.environment)
    same_torch = old.environment.versions.get("torch") == new.environment.versions.get("torch")
    drifts, scatter = _torchs_times(pairs) if same_torch else ({}, 0.0)
    compared = tuple(_compared(a, b, drifts, scatter) for a, b in pairs)
    return Comparison(
        regression=any(each.change == "slower" for each in compared),
        compared=compared,
        only_old=tuple(label for label in before if label not in after),
        only_new=tuple(label for label in after if label not in before),
        differences=differences,
        drifts={kind: math.exp(drift) for kind, drift in drifts.items()},
        warnings=_warnings(differences, has_yardstick=bool(drifts)),
    )


def _compared(old: Entry, new: Entry, drifts: dict[str, float], scatter: float) -> Compared:
    noise = max(old.noise, new.noise, _SCATTERS * scatter)
    longer = math.log(new.ours.median / old.ours.median)
    relative = longer - _torchs_change(old, new, drifts) if drifts else None
    found = change(old.ours, new.ours, noise)
    if relative is not None and not (abs(relative) > noise and (relative > 0) == (longer > 0)):
        found = "same"
    return Compared(
        suite=new.suite,
        product=new.label,
        old_ms=old.ours.median,
        new_ms=new.ours.median,
        time=math.exp(longer),
        relative=None if relative is None else math.exp(relative),
        noise=noise,
        change=found,
        throttled=any(entry.state is not None and bool(entry.state.throttled) for entry in (old, new)),
    )


def _torchs_times(pairs: list[tuple[Entry, Entry]]) -> tuple[dict[str, float], float]:
    """How torch's times changed, by what bounds the products, and how far single ones are from that; logarithms.

    Apart by bound: the clocks of two cards may differ where their memories do not."""
    changes: dict[str, list[float]] = {}
    for old, new in pairs:
        if _has_torch(old, new):
            changes.setdefault(_bound(new), []).append(_torchs_change(old, new, {}))
    drifts = {kind: statistics.median(values) for kind, values in changes.items()}
    apart = [abs(value - drifts[kind]) for kind, values in changes.items() for value in values]
    return drifts, _NORMAL * statistics.median(apart) if apart else 0.0


def _has_torch(old: Entry, new: Entry) -> bool:
    return TORCH in old.competitors and TORCH in new.competitors


def _torchs_change(old: Entry, new: Entry, drifts: dict[str, float]) -> float:
    """The logarithm by which torch's time changed; where it has none, what its others did."""
    if _has_torch(old, new):
        return math.log(new.competitors[TORCH].median / old.competitors[TORCH].median)
    return drifts.get(_bound(new), statistics.median(drifts.values()))


def _bound(entry: Entry) -> str:
    return "of unknown bound" if entry.bound is None else f"bound by {entry.bound}"


def _by_label(results: Results) -> dict[str, Entry]:
    return {f"{each.suite}: {each.label}": each for each in results.entries}


def _differences(old: Environment, new: Environment) -> tuple[Difference, ...]:
    before, after = ({**each.facts, "L2": each.l2} for each in (old, new))
    values = ((name, before.get(name, "none"), after.get(name, "none")) for name in before | after)
    return tuple(Difference(*each) for each in values if each[1] != each[2])


def _warnings(differences: tuple[Difference, ...], *, has_yardstick: bool) -> tuple[str, ...]:
    found = {each.what: each for each in differences}
    warnings = []
    if "GPU" in found:
        warnings.append(f"the GPUs differ ({found['GPU'].old}, {found['GPU'].new}): a change may be theirs")
    if "L2" in found:
        warnings.append("L2 was flushed in one run alone: times of small products cannot be compared")
    if "torch" in found:
        warnings.append(
            "torch's version differs, so it is no yardstick: a card that is slower as a whole looks like us"
        )
    elif not has_yardstick:
        warnings.append("no product has torch's time in both runs: a card that is slower as a whole looks like us")
    return tuple(warnings)


def _percent(ratio: float) -> str:
    """
    >>> _percent(1.05), _percent(0.98)
    ('+5.0%', '-2.0%')
    """
    return f"{ratio - 1:+.1%}"
