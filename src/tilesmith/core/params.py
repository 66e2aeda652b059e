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

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache, cached_property
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, get_args

import torch

from tilesmith.core.block_layout import TENSOR_MAP, BlockLayout, Kind, all_of, headers_of, layout_of, members_of
from tilesmith.core.block_layout import Aligned as Aligned
from tilesmith.core.block_layout import Member as Member

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


def to(cpp: str, header: str | None = None) -> Member:
    """The member that points to values of a type."""
    return Member(f"{cpp}*", 8, 8, header=header)


Int32 = Annotated[int, Member("int", 4, 4, "i")]
UInt32 = Annotated[int, Member("unsigned", 4, 4, "I")]
Int64 = Annotated[int, Member("long long", 8, 8, "q")]
Int32s = Annotated[tuple[int, ...], Member("int", 4, 4, "i")]
UInt32s = Annotated[tuple[int, ...], Member("unsigned", 4, 4, "I")]
Int64s = Annotated[tuple[int, ...], Member("long long", 8, 8, "q")]
Pointer = Address | None  # None where the kernel does not ask
MapSlot = Annotated[TensorMap | None, TENSOR_MAP]


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
        assert len(own) == len(members_of(_class_of(self)))
        return type(self)(**own)

    def declaration(self) -> str:
        """The C++ struct `Parameters`, after those that it is made of."""
        return self.filled[0].declaration

    @classmethod
    def headers(cls) -> tuple[str, ...]:
        """The files that declare the types of its members."""
        block: Kind = cls
        return headers_of(block)

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
    def filled(self) -> tuple[BlockLayout, list[Any]]:
        """The layout, and the value of every single member, those of nested blocks included."""
        values: list[Any] = []
        lengths: list[int] = []
        _collect(self, values, lengths)
        return layout_of(_class_of(self), tuple(lengths)), values

    def initializer(self) -> str:
        """The value of the struct in C++, with the names of its members; null where a launch fills it in."""
        parts = []
        for name, kind, _, is_array in members_of(_class_of(self)):
            value = getattr(self, name)
            texts = [_initial(kind, each) for each in (value if is_array else (value,))]
            parts.append(f"/* {name} */ {'{' + ', '.join(texts) + '}' if is_array else texts[0]}")
        return "{" + ", ".join(parts) + "}"


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
            found.append((all_of(attrgetter, singles), False, False))
            singles.clear()

    def visit(block: Kind, prefix: str) -> None:
        for name, kind, _, is_array in members_of(block):
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
