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
from functools import cache
from inspect import get_annotations
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self, get_args

import torch

from tilesmith.core.block_layout import TENSOR_MAP, BlockLayout, Kind, headers_of, layout_of, members_of
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
    rounds_to_tf32: bool = False  # what is loaded, which is float32


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

    __hash__ = int.__hash__  # kernels are looked up by them, and Enum's own takes ten times as long

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


if TYPE_CHECKING:
    _Members = object  # nobody is to take a block for a tuple
else:
    _Members = tuple


@dataclass(frozen=True)
class ParameterBlock(_Members):
    """The parameters of a kernel, or some of them that belong together. The layout is C++'s: members in their order,
    each at a multiple of its alignment. The length of an array is that of the value.

    A block is a tuple of its members: a plan has hundreds of them, and what a frozen dataclass would do to keep and
    collect them takes several times as long.
    """

    def __init_subclass__(cls) -> None:
        names = tuple(dict.fromkeys(name for each in reversed(cls.__mro__) for name in get_annotations(each)))
        members = ", ".join(names)
        new = eval(f"lambda cls, *, {members}: new(cls, ({members},))", {"new": tuple.__new__})  # as namedtuple does
        cls.__new__ = new  # type: ignore[method-assign]
        cls.__init__ = object.__init__  # type: ignore[method-assign]
        for i, name in enumerate(names):
            setattr(cls, name, property(itemgetter(i)))

    def changed(self, **members: Any) -> Self:
        """The same block, but for these members."""
        own: list[Any] = list(self)  # type: ignore[call-overload]
        positions = _positions(_class_of(self))
        for name, value in members.items():
            own[positions[name]] = value
        return tuple.__new__(type(self), own)  # type: ignore[type-var]

    def declared(self) -> tuple[str, tuple[str, ...]]:
        """The C++ struct `Parameters`, after those that it is made of; and the files that declare the types of its
        members."""
        return self._layout().declared

    def declaration(self) -> str:
        return self._layout().declared[0]

    @classmethod
    def headers(cls) -> tuple[str, ...]:
        block: Kind = cls
        return headers_of(block)

    def packed(self) -> bytes:
        """The bytes of the struct, with zeros where a launch writes addresses and tensor maps."""
        layout, values = self.filled()
        return layout.pack(values)

    def addresses(self) -> Iterator[tuple[int, Address]]:
        """The addresses that a launch fills in, each with its position."""
        layout, values = self.filled()
        pairs = zip(layout.address_positions, layout.addresses(values), strict=True)
        return ((position, each) for position, each in pairs if each is not None)

    def tensor_maps(self) -> Iterator[tuple[int, TensorMap]]:
        """The tensor maps that a launch fills in, each with its position."""
        layout, values = self.filled()
        pairs = zip(layout.map_positions, layout.maps(values), strict=True)
        return ((position, each) for position, each in pairs if each is not None)

    def filled(self) -> tuple[BlockLayout, tuple[Any, ...]]:
        """The layout, and the value of every single member, those of nested blocks included."""
        return self._layout(), _flattener(_class_of(self))(self)

    def _layout(self) -> BlockLayout:
        block = _class_of(self)
        return layout_of(block, _measurer(block)(self))

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


@cache
def _flattener(block: Kind) -> Callable[[Any], tuple[Any, ...]]:
    """What makes one tuple of the members of a block and of those that it has: one expression, compiled once, as
    `namedtuple` does. Of a block with two numbers, an array and a block it is `lambda b: (*b[0:2], *b[2], *b[3])`."""
    nested: dict[str, Any] = {}

    def pieces(block: Kind, b: str) -> Iterator[str]:
        first = 0  # of the single members that come next, which are taken together
        members = members_of(block)
        for i, (_, kind, _, is_array) in enumerate(members):
            if is_array or not isinstance(kind, Member):
                yield f"*{b}[{first}:{i}]"
                first = i + 1
                if is_array and not isinstance(kind, Member):
                    yield _of_each(kind, f"{b}[{i}]", _flattener, nested)
                elif is_array or _is_flat(kind):
                    yield f"*{b}[{i}]"
                else:
                    yield from pieces(kind, f"{b}[{i}]")
        yield f"*{b}[{first}:]"

    return _expression(pieces(block, "b"), nested)


@cache
def _measurer(block: Kind) -> Callable[[Any], tuple[int, ...]]:
    """The same for the lengths of arrays."""
    nested: dict[str, Any] = {}

    def pieces(block: Kind, b: str) -> Iterator[str]:
        for i, (_, kind, _, is_array) in enumerate(members_of(block)):
            if is_array:
                yield f"len({b}[{i}])"
                if not isinstance(kind, Member):
                    yield _of_each(kind, f"{b}[{i}]", _measurer, nested)
            elif not isinstance(kind, Member):
                yield from pieces(kind, f"{b}[{i}]")

    return _expression(pieces(block, "b"), nested)


def _of_each(kind: Kind, array: str, make: Callable[[Kind], Any], nested: dict[str, Any]) -> str:
    """The members of all blocks of an array."""
    nested |= {kind.__name__: make(kind), "chain": chain}
    return f"*chain.from_iterable(map({kind.__name__}, {array}))"


def _expression(pieces: Iterator[str], names: dict[str, Any]) -> Callable[[Any], tuple[Any, ...]]:
    items = "".join(f"{piece}, " for piece in pieces if not piece.endswith("[0:0]"))
    return eval(f"lambda b: ({items})", names)  # type: ignore[no-any-return]


def _is_flat(block: Kind) -> bool:
    return all(isinstance(kind, Member) and not is_array for _, kind, _, is_array in members_of(block))


@cache
def _positions(block: Kind) -> dict[str, int]:
    return {name: i for i, (name, *_) in enumerate(members_of(block))}
