"""Each launch of a plan in words."""

from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.core.numbers import paragraph
from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.kernels import family_of
from tilesmith.kernels.family import LaunchWords


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch."""

    kernel: str
    words: LaunchWords
    grid: tuple[int, int, int]
    cluster: int
    threads: int
    shared_bytes: int

    @classmethod
    def of(cls, launch: KernelLaunch, plan: Plan) -> "Launch":
        kernel = launch.kernel
        words = family_of(plan).launch_words(launch, plan)
        return cls(kernel.entry, words, launch.grid, launch.cluster, kernel.threads, kernel.shared_bytes)

    def lines(self, number: int) -> Iterator[str]:
        first = f"  {number} {self.kernel:<14} "
        indent, words = " " * len(first), self.words
        yield from paragraph(words.does, first)
        if words.stops:
            yield from paragraph(words.stops, indent)
        yield from paragraph(self._launched, indent)
        if words.registers:
            loading, multiplying = words.registers
            registers = f"registers: {multiplying} of a thread that multiplies, {loading} of one that loads"
            yield from paragraph(registers, indent)

    @property
    def _launched(self) -> str:
        grid = " x ".join(f"{size:,}" for size in self.grid if size != 1) or "1"
        text = f"grid {grid}, {self.threads} threads"
        if self.cluster > 1:
            text += f", clusters of {self.cluster}"
        if self.shared_bytes:
            text += f", {self.shared_bytes:,} bytes of shared memory"
        if self.words.pipeline_stages:
            text += f", {self.words.pipeline_stages} pipeline stages"
        return text
