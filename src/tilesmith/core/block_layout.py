"""How C++ lays out the members of a block of parameters (core/params.py): their types, places and declarations."""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import itemgetter
from typing import Annotated, Any, Final, TypeAlias, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Member:
    """How C++ spells a member of a struct, and how many bytes it has there."""

    cpp: str
    bytes: int
    alignment: int
    code: str = ""  # of Python's struct module; none if a launch fills it in
    header: str | None = None  # that declares the type


TENSOR_MAP: Final = Member("tilesmith::ptx::TensorMap", 128, 64, header="ptx/tma.cuh")


@dataclass(frozen=True, slots=True)
class Aligned:
    """Asks for a larger alignment of a nested block."""

    bytes: int


Kind: TypeAlias = Any  # a Member, or a class of blocks


@cache
def members_of(block: Kind) -> tuple[tuple[str, Kind, int, bool], ...]:
    """Name, kind and least alignment of each member, and whether it is an array."""
    hints, found = get_type_hints(block, include_extras=True), []
    for field in fields(block):
        hint, extras = hints[field.name], list[Any]()
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
        is_array = get_origin(hint) is tuple
        if is_array:
            hint = get_args(hint)[0]
        kind = next((x for x in extras if isinstance(x, Member)), hint)
        alignment = next((x.bytes for x in extras if isinstance(x, Aligned)), 1)
        if not isinstance(kind, Member) and not is_dataclass(kind):
            raise TypeError(f"{block.__name__}.{field.name} says nothing of how C++ spells it")
        found.append((field.name, kind, alignment, is_array))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where the members of a block lie, if its arrays have certain lengths. Members are counted one by one, those of
    nested blocks included."""

    declared: tuple[str, tuple[str, ...]]  # the text, and the headers that it needs
    numbers: Callable[[Sequence[Any]], tuple[Any, ...]]  # the members that Python packs
    packer: struct.Struct
    addresses: Callable[[Sequence[Any]], tuple[Any, ...]]  # that a launch fills in
    address_positions: tuple[int, ...]
    maps: Callable[[Sequence[Any]], tuple[Any, ...]]  # tensor maps
    map_positions: tuple[int, ...]

    def pack(self, values: Sequence[Any]) -> bytes:
        return self.packer.pack(*self.numbers(values))


@cache
def layout_of(block: Kind, lengths: tuple[int, ...]) -> BlockLayout:
    found = _Struct(block, iter(lengths), "Parameters")
    texts: dict[str, str] = {}
    found.declare(texts)
    numbers, addresses, maps = list[int](), dict[int, int](), dict[int, int]()
    code, end = "<", 0
    for i, (position, member) in enumerate(found.slots):
        if member.code:
            numbers.append(i)
            code += f"{position - end}x{member.code}"
            end = position + member.bytes
        else:
            (maps if member.header == TENSOR_MAP.header else addresses)[i] = position
    packer = struct.Struct(f"{code}{found.bytes - end}x")
    declared = "".join(texts.values()), headers_of(block)
    return BlockLayout(
        declared=declared,
        numbers=all_of(numbers),
        packer=packer,
        addresses=all_of(list(addresses)),
        address_positions=tuple(addresses.values()),
        maps=all_of(list(maps)),
        map_positions=tuple(maps.values()),
    )


class _Struct:
    """A block as C++ lays it out, whose arrays have the next of these lengths."""

    def __init__(self, block: Kind, lengths: Iterator[int], name: str) -> None:
        self.name, self.bytes, self.alignment = name, 0, 1
        self.slots: list[tuple[int, Member]] = []  # every single member, with its position
        self._lines: list[str] = []
        self._nested: list[_Struct] = []
        for member, kind, least, is_array in members_of(block):
            count = next(lengths) if is_array else 1
            spelled = kind.cpp if isinstance(kind, Member) else kind.__name__
            aligned = f"alignas({least}) " if least > 1 else ""
            self._lines.append(f"  {aligned}{spelled} {member}{f'[{count}]' if is_array else ''};\n")
            for _ in range(count):
                self._add(kind if isinstance(kind, Member) else _Struct(kind, lengths, kind.__name__), least)
        self.bytes = _round_up(self.bytes, self.alignment)

    def _add(self, member: "Member | _Struct", least: int) -> None:
        alignment = max(member.alignment, least)
        at = _round_up(self.bytes, alignment)
        self.alignment, self.bytes = max(self.alignment, alignment), at + member.bytes
        if isinstance(member, Member):
            self.slots.append((at, member))
        else:
            self._nested.append(member)
            self.slots += [(at + position, each) for position, each in member.slots]

    def declare(self, texts: dict[str, str]) -> None:
        """Adds the C++ of the struct, and before it that of those that it has, by name."""
        for each in self._nested:
            each.declare(texts)
        size = f"static_assert(sizeof({self.name}) == {self.bytes});"
        text = f"struct {self.name} {{\n{''.join(self._lines)}}};\n{size}\n"
        if texts.setdefault(self.name, text) != text:
            raise TypeError(f"there are two blocks {self.name} with arrays of different lengths")


def all_of(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What gets the values at these positions, as a tuple even if there is one."""
    if len(positions) < 2:
        return itemgetter(slice(positions[0], positions[0] + 1) if positions else slice(0))
    return itemgetter(*positions)


@cache
def headers_of(block: Kind) -> tuple[str, ...]:
    found: list[str | None] = []
    for _, kind, _, _ in members_of(block):
        found += [kind.header] if isinstance(kind, Member) else headers_of(kind)
    return tuple(name for name in dict.fromkeys(found) if name)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
