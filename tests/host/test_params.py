"""Constants, enums and parameters as Python declares them: their C++, and bytes like those of a C++ compiler."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import torch

from tilesmith.core.params import (
    Address,
    Aligned,
    Int32,
    Int32s,
    Int64,
    Int64s,
    KernelConstants,
    KernelEnum,
    MapSlot,
    ParameterBlock,
    Pointer,
    TensorMap,
    UInt32,
    UInt32s,
    to,
)


class Store(KernelEnum):
    BOXES = 0
    ALL_LINES = 5


@dataclass(frozen=True, kw_only=True)
class Inner(KernelConstants):
    store: Store
    Bias: str


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    Output: str
    tile_m: int = 128
    aligned: bool
    epilogue: Inner


@dataclass(frozen=True, kw_only=True)
class Lines(ParameterBlock):
    first: Annotated[Pointer, to("float")]
    stride: Int64
    count: Int32


@dataclass(frozen=True, kw_only=True)
class Dim(ParameterBlock):
    size: UInt32
    steps: Int32s


@dataclass(frozen=True, kw_only=True)
class Block(ParameterBlock):
    m: Int32
    a: MapSlot
    lines: Lines
    flag: UInt32
    strides: Int64s
    sizes: UInt32s
    dims: tuple[Dim, ...]
    tail: Annotated[Lines, Aligned(64)]
    range_stats: Annotated[Pointer, to("const tilesmith::RangeStats", "kernels/fp32_split/range_check.cuh")]


A_MAP = TensorMap("a", 16, torch.float16, (64, 8), (128,), (64, 8), 128)
BLOCK = Block(
    m=-3,
    a=A_MAP,
    lines=Lines(first=Address("out", 32), stride=2**40, count=7),
    flag=2**32 - 1,
    strides=(1, -2, 3),
    sizes=(4, 5),
    dims=(Dim(size=1, steps=(2, 3, 4)), Dim(size=5, steps=(6, 7, 8))),
    tail=Lines(first=None, stride=9, count=10),
    range_stats=Address("workspace", 48),
)
# What C++ has to know before the block.
TYPES = """#include <cstddef>
#include <cstdio>
namespace tilesmith {
struct RangeStats;
namespace ptx { struct alignas(64) TensorMap { unsigned char bytes[128]; }; }
}
"""


def output_of(program: str, folder: Path) -> bytes:
    (folder / "main.cpp").write_text(program)
    subprocess.run(["g++", "-std=c++17", "-Werror", "-Wall", "-o", "main", "main.cpp"], cwd=folder, check=True)
    return subprocess.run(["./main"], cwd=folder, capture_output=True, check=True).stdout


def test_constants_are_rendered_by_kind_and_nested_ones_in_a_namespace() -> None:
    constants = Constants(Output="float", aligned=True, epilogue=Inner(store=Store.ALL_LINES, Bias="double"))
    assert list(constants.definitions()) == [
        "using Output = float;",
        "constexpr int tile_m = 128;",
        "constexpr bool aligned = true;",
        "namespace epilogue {",
        "constexpr auto store = tilesmith::Store::all_lines;",
        "using Bias = double;",
        "}",
    ]
    assert list(constants.enums()) == [Store]
    assert Store.declaration() == "enum class Store { boxes = 0, all_lines = 5 };"


def test_a_block_is_declared_after_those_that_it_has() -> None:
    assert BLOCK.declaration() == (
        "struct Lines {\n"
        "  float* first;\n"
        "  long long stride;\n"
        "  int count;\n"
        "};\n"
        "static_assert(sizeof(Lines) == 24);\n"
        "struct Dim {\n"
        "  unsigned size;\n"
        "  int steps[3];\n"
        "};\n"
        "static_assert(sizeof(Dim) == 16);\n"
        "struct Parameters {\n"
        "  int m;\n"
        "  tilesmith::ptx::TensorMap a;\n"
        "  Lines lines;\n"
        "  unsigned flag;\n"
        "  long long strides[3];\n"
        "  unsigned sizes[2];\n"
        "  Dim dims[2];\n"
        "  alignas(64) Lines tail;\n"
        "  const tilesmith::RangeStats* range_stats;\n"
        "};\n"
        "static_assert(sizeof(Parameters) == 384);\n"
    )
    assert BLOCK.headers() == ("ptx/tma.cuh", "kernels/fp32_split/range_check.cuh")


def test_the_bytes_are_those_that_a_compiler_makes_of_the_value(tmp_path: Path) -> None:
    program = f"""{TYPES}{BLOCK.declaration()}
static const Parameters p = {BLOCK.initializer()};
int main() {{ std::fwrite(&p, sizeof(p), 1, stdout); }}
"""
    assert output_of(program, tmp_path) == BLOCK.packed()


def test_addresses_and_maps_are_where_a_compiler_has_their_members(tmp_path: Path) -> None:
    members = ("a", "lines.first", "tail.first", "range_stats")
    printed = "".join(f'  std::printf("%zu ", offsetof(Parameters, {name}));\n' for name in members)
    program = f"{TYPES}{BLOCK.declaration()}int main() {{\n{printed}}}\n"
    a, first, _, range_stats = map(int, output_of(program, tmp_path).split())
    assert list(BLOCK.tensor_maps()) == [(a, A_MAP)]
    # Nobody fills in what is None.
    assert list(BLOCK.addresses()) == [(first, Address("out", 32)), (range_stats, Address("workspace", 48))]
    for position, length in ((a, 128), (first, 8), (range_stats, 8)):
        assert BLOCK.packed()[position : position + length] == bytes(length)


def test_the_length_of_an_array_is_that_of_its_value() -> None:
    one, three = Dim(size=1, steps=(2,)), Dim(size=1, steps=(2, 3, 4))
    assert "int steps[1];" in one.declaration()
    assert "int steps[3];" in three.declaration()
    assert (len(one.packed()), len(three.packed())) == (8, 16)


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(Exception, match="out of range"):
        Dim(size=-1, steps=(0,)).packed()


@dataclass(frozen=True, kw_only=True)
class Unspelled(ParameterBlock):
    m: Int32
    depth: int


def test_a_field_without_a_spelling_is_named() -> None:
    with pytest.raises(TypeError, match=r"^Unspelled.depth says nothing of how C\+\+ spells it$"):
        Unspelled(m=1, depth=2).declaration()


def test_one_name_cannot_stand_for_two_structs() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Pair(ParameterBlock):
        first: Dim
        second: Dim

    with pytest.raises(TypeError, match="two blocks Dim with arrays of different lengths"):
        Pair(first=Dim(size=1, steps=(2,)), second=Dim(size=1, steps=(2, 3))).declaration()
