"""A logarithmic axis: where a value lies on it, and which values are written beside it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tilesmith.bench.results import Results

_FEW: Final = 3  # labels at least, if the axis is to be read
_CHARACTER: Final = 0.036  # of the axis: as wide as one is on a phone
_STEPS: Final = (  # the roundest first
    (1.0,),
    (2.0, 5.0),
    (1.25, 1.5, 3.0, 4.0, 6.0, 8.0),
    tuple(tenths / 10 for tenths in range(10, 100)),
)


@dataclass(frozen=True, slots=True)
class Axis:
    """Positive values from `low` to `high`, in equal parts for equal ratios."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], margin: float = 0.05) -> "Axis":
        """With room at both ends.

        >>> Axis.around([1, 100], margin=0.5)
        Axis(low=0.1, high=1000.0)
        """
        logs = [math.log10(value) for value in values]
        room = max(max(logs) - min(logs), 0.1) * margin
        return cls(10 ** (min(logs) - room), 10 ** (max(logs) + room))

    @classmethod
    def of_roofline(cls, results: Results) -> tuple["Axis", "Axis"]:
        """Operations for each byte and TFLOP/s, with room for all products and for the roofs."""
        peaks, bandwidth = results.peaks.values(), results.bandwidth
        ridges = [peak / bandwidth * 1e3 for peak in peaks] if bandwidth else []
        x = cls.around([*(entry.intensity for entry in results.entries), *ridges])
        return x, cls.around([*(entry.tflops for entry in results.entries), *peaks])

    def share(self, value: float) -> float:
        """How far along the axis a value is: 0 and 1 are the ends, and what lies beyond is put there.

        >>> Axis(1, 100).share(10), Axis(1, 100).share(1000)
        (0.5, 1.0)
        """
        return min(max(math.log(value / self.low) / math.log(self.high / self.low), 0.0), 1.0)

    @property
    def ticks(self) -> tuple[float, ...]:
        """Round values, neither few nor close.

        >>> Axis(0.5, 2e4).ticks, Axis(0.75, 1.3).ticks
        ((1.0, 10.0, 100.0, 1000.0, 10000.0), (0.8, 1.0, 1.25))
        """
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        ticks: list[float] = []
        for steps in _STEPS:
            for value in (float(f"{step}e{decade}") for decade in decades for step in steps):
                if self.low <= value <= self.high and all(self._have_room(value, tick) for tick in ticks):
                    ticks.append(value)
            if len(ticks) >= _FEW:
                break
        return tuple(sorted(ticks))

    def _have_room(self, a: float, b: float) -> bool:
        return abs(self.share(a) - self.share(b)) >= _CHARACTER * max(len(tick_label(a)), len(tick_label(b)), 3)


def tick_label(value: float) -> str:
    """
    >>> [tick_label(x) for x in (3e-7, 1e-15, 0.001, 0.5, 1.0, 1000.0, 1e4)]
    ['3e-7', '1e-15', '0.001', '0.5', '1', '1000', '10000']
    """
    if 1e-3 <= value < 1e6:
        return f"{value:g}"
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
