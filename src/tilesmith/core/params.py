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
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

import torch

# The memory that a launch reads or writes; "a_packed" and "b_packed" are what tilesmith.pack made of an operand. The
# two factors of an epilogue, which are eight bytes as well, come in the place of an address.
Buffer = Literal["a", "b", "out", "workspace", "a_packed", "b_packed", "bias", "residual", "factors"]
BUFFERS: Final[tuple[Buffer, ...]] = get_args(Buffer)

MAX_BATCH_DIMS: Final = 3  # that a kernel walks: a tensor map has five dimensions
TILE_K: Final = 64  # of 16-bit elements in a line of 128 bytes of shared memory
LIBRARY_CONSTANTS: Final = {
    "max_batch_dims": MAX_BATCH_DIMS,
    "tile_k": TILE_K,
}  # of all kernels, in namespace tilesmith


@dataclass(frozen=True, slots=True)
class Address:
    """A place in a buffer, whose own address comes with each call."""

    buffer: Buffer
    offset: int = 0  # bytes


@dataclass(frozen=True, slots=True)
class TensorMap:
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
MapSlot = Annotated[TensorMap | None, Member("tilesmith::ptx::TensorMap", 128, 64, header="ptx/tma.cuh")]


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

    def declaration(self) -> str:
        """The C++ struct `Parameters`, after those that it is made of."""
        return "".join(_structs(_class_of(self), _lengths(self), "Parameters").values())

    def headers(self) -> tuple[str, ...]:
        """The files that declare the types of its members."""
        return _headers(_class_of(self))

    def packed(self) -> bytes:
        """The bytes of the struct, with zeros where a launch writes addresses and tensor maps."""
        data = bytearray(_extent(_class_of(self), _lengths(self))[0])
        for position, member, value in self.slots():
            if member.code:
                struct.pack_into(f"<{member.code}", data, position, value)
        return bytes(data)

    def addresses(self) -> Iterator[tuple[int, Address]]:
        """The addresses that a launch fills in, each with its position."""
        return ((position, value) for position, _, value in self.slots() if isinstance(value, Address))

    def tensor_maps(self) -> Iterator[tuple[int, TensorMap]]:
        """The tensor maps that a launch fills in, each with its position."""
        return ((position, value) for position, _, value in self.slots() if isinstance(value, TensorMap))

    def slots(self, base: int = 0) -> Iterator[tuple[int, Member, Any]]:
        """Every single member, those of nested blocks included, with its position and its value."""
        at = base
        for name, kind, alignment in _members(_class_of(self)):
            value = getattr(self, name)
            for each in value if isinstance(value, tuple) else (value,):
                size, own = _extent(kind, _lengths(each))
                at = _round_up(at, max(own, alignment))
                if isinstance(kind, Member):
                    yield at, kind, each
                else:
                    yield from each.slots(at)
                at += size

    def initializer(self) -> str:
        """The value of the struct in C++, with the names of its members; null where a launch fills it in."""
        parts = []
        for name, kind, _ in _members(_class_of(self)):
            value = getattr(self, name)
            texts = [_initial(kind, each) for each in (value if isinstance(value, tuple) else (value,))]
            parts.append(f"/* {name} */ {'{' + ', '.join(texts) + '}' if isinstance(value, tuple) else texts[0]}")
        return "{" + ", ".join(parts) + "}"


Kind: TypeAlias = Any  # a Member, or a class of blocks


def _class_of(value: ParameterBlock | KernelConstants) -> Kind:
    return type(value)


def _initial(kind: Kind, value: Any) -> str:
    if isinstance(value, ParameterBlock):
        return value.initializer()
    assert isinstance(kind, Member)
    return str(value) if kind.code else "nullptr" if kind.cpp.endswith("*") else "{}"


@cache
def _members(block: Kind) -> tuple[tuple[str, Kind, int], ...]:
    """Name, kind and least alignment of each member."""
    hints, found = get_type_hints(block, include_extras=True), []
    for field in fields(block):
        hint, extras = hints[field.name], list[Any]()
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
        if get_origin(hint) is tuple:
            hint = get_args(hint)[0]
        kind = next((x for x in extras if isinstance(x, Member)), hint)
        alignment = next((x.bytes for x in extras if isinstance(x, Aligned)), 1)
        if not isinstance(kind, Member) and not (isinstance(kind, type) and issubclass(kind, ParameterBlock)):
            raise TypeError(f"{block.__name__}.{field.name} says nothing of how C++ spells it")
        found.append((field.name, kind, alignment))
    return tuple(found)


# The lengths of all arrays of a value, nested as they are: what the layout depends on besides the class.
Lengths = tuple[Any, ...]


def _lengths(value: Any) -> Lengths:
    if isinstance(value, ParameterBlock):
        return tuple(_lengths(getattr(value, name)) for name, _, _ in _members(_class_of(value)))
    return (len(value), _lengths(value[0])) if isinstance(value, tuple) else ()


@cache
def _extent(kind: Kind, lengths: Lengths) -> tuple[int, int]:
    """The bytes and the alignment of one member."""
    if isinstance(kind, Member):
        return kind.bytes, kind.alignment
    end, most = 0, 1
    for (_, member, least), own in zip(_members(kind), lengths, strict=True):
        count, inner = own if len(own) == 2 and isinstance(own[0], int) else (1, own)
        size, alignment = _extent(member, inner)
        end = _round_up(end, max(alignment, least)) + count * size
        most = max(most, alignment, least)
    return _round_up(end, most), most


@cache
def _structs(block: Kind, lengths: Lengths, name: str) -> dict[str, str]:
    """The C++ of a block, and before it that of the blocks that it has, by name."""
    found: dict[str, str] = {}
    lines = []
    for (member, kind, least), own in zip(_members(block), lengths, strict=True):
        is_array = len(own) == 2 and isinstance(own[0], int)
        count, inner = own if is_array else (1, own)
        if not isinstance(kind, Member):
            for own_name, text in _structs(kind, inner, kind.__name__).items():
                if found.setdefault(own_name, text) != text:
                    raise TypeError(f"{block.__name__} has two blocks {own_name} with arrays of different lengths")
        spelled = kind.cpp if isinstance(kind, Member) else kind.__name__
        aligned = f"alignas({least}) " if least > 1 else ""
        lines.append(f"  {aligned}{spelled} {member}{f'[{count}]' if is_array else ''};\n")
    size = _extent(block, lengths)[0]
    found[name] = f"struct {name} {{\n{''.join(lines)}}};\nstatic_assert(sizeof({name}) == {size});\n"
    return found


@cache
def _headers(block: Kind) -> tuple[str, ...]:
    found: list[str | None] = []
    for _, kind, _ in _members(block):
        found += [kind.header] if isinstance(kind, Member) else _headers(kind)
    return tuple(name for name in dict.fromkeys(found) if name)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
