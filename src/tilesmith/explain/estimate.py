"""The time that the cost model expects, by what it is spent on."""

from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.core.numbers import microseconds, paragraph, quantity
from tilesmith.core.plan import Plan
from tilesmith.core.roofline import Peak
from tilesmith.explain.work import Work


@dataclass(frozen=True, slots=True)
class Part:
    """What some of the time is spent on."""

    name: str
    cycles: float  # clocks of the device
    us: float | None  # at the highest clock


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the cost model expects; not a measurement."""

    cycles: float
    clock_hz: float | None  # the GPU's highest; None if that is not known
    us: float | None
    parts: tuple[Part, ...]
    flops_per_second: float | None
    rooflines: float | None  # the time as a multiple of the least time, if that is known

    @classmethod
    def of(cls, plan: Plan, peak: Peak | None, work: Work) -> "Estimate":
        clock_hz = None if peak is None else peak.clock_hz

        def microseconds_of(cycles: float) -> float | None:
            return None if clock_hz is None else 1e6 * cycles / clock_hz

        us, bounds = microseconds_of(plan.cycles), work.bounds
        return cls(
            cycles=plan.cycles,
            clock_hz=clock_hz,
            us=us,
            parts=tuple(
                Part(name, cycles, microseconds_of(cycles))
                for name, cycles in plan.cost.cycles_by_part.items()
                if cycles
            ),
            flops_per_second=1e6 * work.flops / us if us else None,
            rooflines=us / bounds.least_us if us and bounds and bounds.bound and bounds.least_us else None,
        )

    def lines(self) -> Iterator[str]:
        for part in self.parts:
            yield f"  {part.name:<14} {_time(part.us, part.cycles):>14}"
        total = f"  {'together':<14} {_time(self.us, self.cycles):>14}"
        if self.flops_per_second is not None:
            total += f", {quantity(self.flops_per_second, 'FLOP/s')}"
        if self.rooflines is not None:
            total += f", {self.rooflines:.2f} times the roofline"
        yield total
        if self.rooflines is not None and self.rooflines < 1:
            yield from paragraph(
                "less than the least time: memory decides, and the model does not count all traffic, or not at the "
                "rate of this GPU"
            )


def _time(us: float | None, cycles: float) -> str:
    return f"{cycles:,.0f} clocks" if us is None else microseconds(us)
