"""What a kernel computes that goes over contiguous memory: operations on elements, and sums and extremes of segments.

A segment is as many elements as a reduction takes together: rows, groups of channels. All values are float32. Threads
go over a segment once for each reduction that needs another's result, and once more to store; what is read again then
comes from a cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Reduction = Literal["sum", "max", "min"]
_EMPTY: Final[dict[Reduction, str]] = {"sum": "0.0f", "max": "-infinity()", "min": "infinity()"}


@dataclass(frozen=True, slots=True)
class Value:
    """A number of each element, or of each segment, that a kernel knows."""

    name: str
    is_of_elements: bool
    stage: int  # how many reductions have to be made, one after the other, before it is known


@dataclass(frozen=True, slots=True)
class _Statement:
    value: Value
    code: str
    uses: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class _Reduced:
    value: Value
    reduction: Reduction
    source: Value


@dataclass(slots=True)
class ChainText:
    """The statements of a kernel, in the order in which they are made.

    >>> chain = ChainText()
    >>> x = chain.operand(is_whole=True)
    >>> y = chain.computed("{} - {}", x, chain.reduced("max", x))
    >>> "y[e] = v2;" in chain.text("Chain", y)
    True
    """

    operands: int = 0
    numbers: int = 0
    _statements: list[_Statement] = field(default_factory=list)
    _reduced: list[_Reduced] = field(default_factory=list)
    _loads: dict[Value, str] = field(default_factory=dict)  # of elements: the function that reads them
    _count: int = 0

    def operand(self, *, is_whole: bool = False, is_of_segments: bool = False) -> Value:
        """The next tensor that the kernel is given: with a value for each element, or one that many elements or
        segments share."""
        number, self.operands = self.operands, self.operands + 1
        if is_of_segments:
            return self.computed(f"value_at(g.x[{number}], segment)")
        value = Value(f"x{number}", True, 0)
        self._loads[value] = "load_whole" if is_whole else "load"
        return value

    def number(self) -> str:
        """The next number that the kernel is given, as code."""
        self.numbers += 1
        return f"g.numbers[{self.numbers - 1}]"

    def computed(self, code: str, *given: Value) -> Value:
        """A value by an expression of C++ in which each {} stands for the next of these."""
        is_of_elements = any(x.is_of_elements for x in given)
        value = Value(self._name("v"), is_of_elements, max((x.stage for x in given), default=0))
        self._statements.append(_Statement(value, code.format(*(x.name for x in given)), given))
        return value

    def reduced(self, reduction: Reduction, x: Value) -> Value:
        """The sum or an extreme of a segment's elements."""
        value = Value(self._name("s"), False, x.stage + 1)
        self._reduced.append(_Reduced(value, reduction, x))
        return value

    @property
    def has_segments(self) -> bool:
        return bool(self._reduced)

    def text(self, name: str, result: Value) -> str:
        """The kernel as a class of C++ for chain.cu."""
        lines = [
            f"struct {name} {{",
            f"  static constexpr bool has_segments = {str(self.has_segments).lower()};",
            "  template <int width, class Team>",
            "  static __device__ void run(const Arguments& g, unsigned segment, const Team& team) {",
            "    const unsigned first = segment * g.length;",
        ]
        for stage in range(result.stage + 1):
            lines += self._of_segments(stage)
            if reduced := [x for x in self._reduced if x.source.stage == stage and x.value.stage <= result.stage]:
                lines += [f"    float of_{x.value.name} = {_EMPTY[x.reduction]};" for x in reduced]
                takes = [f"take_{x.reduction}(of_{x.value.name}, {x.source.name});" for x in reduced]
                lines += self._sweep([x.source for x in reduced], takes)
                lines += [f"    const float {x.value.name} = team.{x.reduction}(of_{x.value.name});" for x in reduced]
        if result.is_of_elements:
            lines += self._sweep([result], [f"y[e] = {result.name};"], stores=True)
        else:
            lines.append(f"    if (team.rank == 0) g.out[segment] = {result.name};")
        return "\n".join([*lines, "  }", "};", ""])

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _of_segments(self, stage: int) -> list[str]:
        own = (x for x in self._statements if not x.value.is_of_elements and x.value.stage == stage)
        return [f"    const float {x.value.name} = {x.code};" for x in own]

    def _sweep(self, wanted: Sequence[Value], last: Sequence[str], *, stores: bool = False) -> Iterator[str]:
        """A loop over the elements of a segment."""
        needed = set(wanted)
        for statement in reversed(self._statements):
            if statement.value in needed:
                needed.update(statement.uses)
        loads = [x for x in self._loads if x in needed]
        yield "    for (unsigned j = team.rank * width; j < g.length; j += team.size * width) {"
        arrays = [*(f"{x.name}s[width]" for x in loads), *(["y[width]"] if stores else [])]
        if arrays:
            yield f"      float {', '.join(arrays)};"
        for x in loads:
            yield f"      {self._loads[x]}<width>(g.x[{x.name[1:]}], first + j, {x.name}s);"
        yield "#pragma unroll"
        yield "      for (int e = 0; e < width; ++e) {"
        for x in loads:
            yield f"        const float {x.name} = {x.name}s[e];"
        for statement in self._statements:
            if statement.value.is_of_elements and statement.value in needed:
                yield f"        const float {statement.value.name} = {statement.code};"
        yield from (f"        {line}" for line in last)
        yield "      }"
        if stores:
            yield "      store<width>(g.out, first + j, y);"
        yield "    }"
