"""What a kernel is compiled and launched with, declared once, as typed Python classes: C++ is rendered from them.

    class Store(KernelEnum):                     namespace tilesmith {
        BOXES = 0                                enum class Store { boxes = 0, lines = 1 };
        LINES = 1                                }

    @dataclass(frozen=True, kw_only=True)        namespace plan {
    class Constants(KernelConstants):
        Output: str                              using Output = float;
        tile_m: int                              constexpr int tile_m = 128;
        store: Store                             constexpr auto store = tilesmith::Store::boxes;
        epilogue: EpilogueConstants              namespace epilogue { .. }

    @dataclass(frozen=True, kw_only=True)        struct Parameters {
    class Parameters(ParameterBlock):
        out: Annotated[Pointer, to("Output")]      Output* out;
        m: Int32                                   int m;
        strides: Int64s                            long long strides[3];
        schedule: Schedule                         Schedule schedule;
                                                 };

NVRTC and the emulator's compiler take the same text, and Python packs the bytes of the same declaration.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache, cached_property
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias, get_args, get_origin, get_type_hints

import torch

# The memory that a launch reads or writes; "a_packed" and "b_packed" are what tilesmith.pack made of an operand. The
# two factors of an epilogue, which are eight bytes as well, come in the place of an address.
Buffer = Literal["a", "b", "out", "workspace", "a_packed", "b_packed", "bias", "residual", "factors"]
BUFFERS: Final[tuple[Buffer, ...]] = get_args(Buffer)

MAX_BATCH_DIMS: Final = 3  # that a kernel walks: a tensor map has five dimensions
TILE_K: Final = 64  # of 16-bit elements in a line of 128 bytes of shared memory
# Of all kernels, in namespace tilesmith.
LIBRARY_CONSTANTS: Final = {"max_batch_dims": MAX_BATCH_DIMS, "tile_k": TILE_K}


class Address(NamedTuple):
    """A place in a buffer, whose own address comes with each call."""

    buffer: Buffer
    offset: int = 0  # bytes


class TensorMap(NamedTuple):
    """A tensor as TMA reads or writes it."""

    buffer: Buffer
    offset: int
    dtype: torch.dtype
    sizes: tuple[int, ...]  # the contiguous dimension first
    strides: tuple[int, ...]  # bytes, from the second dimension on
    box: tuple[int, ...]
    line_bytes: int  # the width of the swizzle; 16 for none


@dataclass(frozen=True, slots=True)
class Member:
    """How C++ spells a member of a struct, and how many bytes it has there."""

    cpp: str
    bytes: int
    alignment: int
    code: str = ""  # of Python's struct module; none if a launch fills it in
    header: str | None = None  # that declares the type


def to(cpp: str, header: str | None = None) -> Member:
    """The member that points to values of a type."""
    return Member(f"{cpp}*", 8, 8, header=header)


@dataclass(frozen=True, slots=True)
class Aligned:
    """Asks for a larger alignment of a nested block."""

    bytes: int


Int32 = Annotated[int, Member("int", 4, 4, "i")]
UInt32 = Annotated[int, Member("unsigned", 4, 4, "I")]
Int64 = Annotated[int, Member("long long", 8, 8, "q")]
Int32s = Annotated[tuple[int, ...], Member("int", 4, 4, "i")]
UInt32s = Annotated[tuple[int, ...], Member("unsigned", 4, 4, "I")]
Int64s = Annotated[tuple[int, ...], Member("long long", 8, 8, "q")]
Pointer = Address | None  # None where the kernel does not ask
_MAP: Final = Member("tilesmith::ptx::TensorMap", 128, 64, header="ptx/tma.cuh")
MapSlot = Annotated[TensorMap | None, _MAP]


class KernelEnum(IntEnum):
    """An enumeration that Python and a kernel share."""

    @classmethod
    @cache
    def declaration(cls) -> str:
        return f"enum class {cls.__name__} {{ {', '.join(f'{x.name.lower()} = {x.value}' for x in cls)} }};"

    @property
    def cpp(self) -> str:
        return f"tilesmith::{type(self).__name__}::{self.name.lower()}"


@dataclass(frozen=True)
class KernelConstants:
    """The constants that a kernel is compiled with. A `str` is the name of a type."""

    def enums(self) -> Iterator[type[KernelEnum]]:
        """Every enumeration that has a value here."""
        for _, value in self._items():
            if isinstance(value, KernelEnum):
                yield type(value)
            elif isinstance(value, KernelConstants):
                yield from value.enums()

    def definitions(self) -> Iterator[str]:
        """The lines that define the constants."""
        for name, value in self._items():
            if isinstance(value, KernelConstants):
                yield from (f"namespace {name} {{", *value.definitions(), "}")
            elif isinstance(value, str):
                yield f"using {name} = {value};"
            elif isinstance(value, KernelEnum):
                yield f"constexpr auto {name} = {value.cpp};"
            else:
                kind, text = ("bool", str(value).lower()) if isinstance(value, bool) else ("int", str(value))
                yield f"constexpr {kind} {name} = {text};"

    def _items(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in _names(_class_of(self)))


@cache
def _names(constants: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(constants))


@dataclass(frozen=True)
class ParameterBlock:
    """The parameters of a kernel, or some of them that belong together. The layout is C++'s: members in their order,
    each at a multiple of its alignment. The length of an array is that of the value."""

    def __init__(self, **members: Any) -> None:
        vars(self).update(members)

    def __init_subclass__(cls) -> None:
        # The one that a frozen dataclass would make takes twice as long, and a plan has hundreds of members.
        cls.__init__ = ParameterBlock.__init__  # type: ignore[method-assign]

    def changed(self, **members: Any) -> Self:
        """The same block, but for these members."""
        own = {**vars(self), **members}
        own.pop("filled", None)
        assert len(own) == len(_members(_class_of(self)))
        return type(self)(**own)

    def declaration(self) -> str:
        """The C++ struct `Parameters`, after those that it is made of."""
        return self.filled[0].declaration

    @classmethod
    def headers(cls) -> tuple[str, ...]:
        """The files that declare the types of its members."""
        block: Kind = cls
        return _headers(block)

    def packed(self) -> bytes:
        """The bytes of the struct, with zeros where a launch writes addresses and tensor maps."""
        layout, values = self.filled
        return layout.pack(values)

    def addresses(self) -> Iterator[tuple[int, Address]]:
        """The addresses that a launch fills in, each with its position."""
        layout, values = self.filled
        return ((position, values[i]) for i, position in layout.pointers if values[i] is not None)

    def tensor_maps(self) -> Iterator[tuple[int, TensorMap]]:
        """The tensor maps that a launch fills in, each with its position."""
        layout, values = self.filled
        return ((position, values[i]) for i, position in layout.maps if values[i] is not None)

    @cached_property
    def filled(self) -> "tuple[BlockLayout, list[Any]]":
        """The layout, and the value of every single member, those of nested blocks included."""
        values: list[Any] = []
        lengths: list[int] = []
        _collect(self, values, lengths)
        return _layout(_class_of(self), tuple(lengths)), values

    def initializer(self) -> str:
        """The value of the struct in C++, with the names of its members; null where a launch fills it in."""
        parts = []
        for name, kind, _, is_array in _members(_class_of(self)):
            value = getattr(self, name)
            texts = [_initial(kind, each) for each in (value if is_array else (value,))]
            parts.append(f"/* {name} */ {'{' + ', '.join(texts) + '}' if is_array else texts[0]}")
        return "{" + ", ".join(parts) + "}"


Kind: TypeAlias = Any  # a Member, or a class of blocks
_class_of: Callable[[object], Kind] = type


def _initial(kind: Kind, value: Any) -> str:
    if isinstance(value, ParameterBlock):
        return value.initializer()
    assert isinstance(kind, Member)
    return str(value) if kind.code else "nullptr" if kind.cpp.endswith("*") else "{}"


def _collect(block: ParameterBlock, values: list[Any], lengths: list[int]) -> None:
    """Adds the value of each single member, and the length of each array, in their order."""
    for read, is_array, is_block in _readers(_class_of(block)):
        found = read(block)
        if is_array:
            lengths.append(len(found))
        if not is_block:
            values.extend(found)
            continue
        for each in found:
            _collect(each, values, lengths)


@cache
def _readers(block: Kind) -> tuple[tuple[Callable[[Any], tuple[Any, ...]], bool, bool], ...]:
    """What reads the members of a block, those of nested blocks included: arrays one by one, and all single members
    between them at once. With each, whether it is an array, and whether of blocks."""
    found: list[tuple[Callable[[Any], tuple[Any, ...]], bool, bool]] = []
    singles: list[str] = []

    def end_singles() -> None:
        if singles:
            found.append((_all_of(attrgetter, singles), False, False))
            singles.clear()

    def visit(block: Kind, prefix: str) -> None:
        for name, kind, _, is_array in _members(block):
            is_block = not isinstance(kind, Member)
            if is_array:
                end_singles()
                found.append((attrgetter(prefix + name), True, is_block))
            elif is_block:
                visit(kind, f"{prefix}{name}.")
            else:
                singles.append(prefix + name)

    visit(block, "")
    end_singles()
    return tuple(found)


def _all_of(getter: Any, names: Sequence[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """What gets them all, as a tuple even if there is one."""
    read = getter(*names) if names else lambda _: ()
    return read if len(names) != 1 else lambda value: (read(value),)


@cache
def _members(block: Kind) -> tuple[tuple[str, Kind, int, bool], ...]:
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
        if not isinstance(kind, Member) and not (isinstance(kind, type) and issubclass(kind, ParameterBlock)):
            raise TypeError(f"{block.__name__}.{field.name} says nothing of how C++ spells it")
        found.append((field.name, kind, alignment, is_array))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where the members of a block lie, if its arrays have certain lengths. Members are counted one by one, those of
    nested blocks included."""

    declaration: str
    numbers: Callable[[Sequence[Any]], tuple[Any, ...]]  # the members that Python packs
    packer: struct.Struct
    pointers: tuple[tuple[int, int], ...]  # which members are addresses, and their positions
    maps: tuple[tuple[int, int], ...]  # tensor maps

    def pack(self, values: Sequence[Any]) -> bytes:
        return self.packer.pack(*self.numbers(values))


@cache
def _layout(block: Kind, lengths: tuple[int, ...]) -> BlockLayout:
    found = _Struct(block, iter(lengths), "Parameters")
    texts: dict[str, str] = {}
    found.declare(texts)
    numbers, pointers, maps = list[int](), list[tuple[int, int]](), list[tuple[int, int]]()
    code, end = "<", 0
    for i, (position, member) in enumerate(found.slots):
        if member.code:
            numbers.append(i)
            code += f"{position - end}x{member.code}"
            end = position + member.bytes
        else:
            (maps if member.header == _MAP.header else pointers).append((i, position))
    packer = struct.Struct(f"{code}{found.bytes - end}x")
    return BlockLayout("".join(texts.values()), _all_of(itemgetter, numbers), packer, tuple(pointers), tuple(maps))


class _Struct:
    """A block as C++ lays it out, whose arrays have the next of these lengths."""

    def __init__(self, block: Kind, lengths: Iterator[int], name: str) -> None:
        self.name, self.bytes, self.alignment = name, 0, 1
        self.slots: list[tuple[int, Member]] = []  # every single member, with its position
        self._lines: list[str] = []
        self._nested: list[_Struct] = []
        for member, kind, least, is_array in _members(block):
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


@cache
def _headers(block: Kind) -> tuple[str, ...]:
    found: list[str | None] = []
    for _, kind, _, _ in _members(block):
        found += [kind.header] if isinstance(kind, Member) else _headers(kind)
    return tuple(name for name in dict.fromkeys(found) if name)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
