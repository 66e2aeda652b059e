"""The translation unit: constants and parameters by name, then a file of the package."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path

import pytest
import torch

from tilesmith.core.device import named
from tilesmith.core.params import Int32, KernelConstants, ParameterBlock
from tilesmith.core.plan import Kernel, Wgmma
from tilesmith.core.problem import Problem
from tilesmith.kernels.fp64 import gemv, skinny
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper import tf32, tiles
from tilesmith.kernels.mma import fp32 as fp32_mma
from tilesmith.kernels.mma.family import FP64, HALF
from tilesmith.kernels.mma.tiles import (
    LARGE_TILES_OF_HALVES,
    LARGE_TILES_ON_TURING,
    TILES_OF_DOUBLES,
    TILES_OF_TERMS,
    Cut,
)
from tilesmith.kernels.outer import outer
from tilesmith.kernels.simt import family as simt
from tilesmith.planner import choose
from tilesmith.runtime import source

PACKAGE = Path(str(resources.files("tilesmith")))
INCLUDE = re.compile(r'^#include "(.*?)"', re.MULTILINE)


def kernel(a: torch.Tensor, b: torch.Tensor) -> Kernel:
    return choose(Problem.of(a, b), named("h200")).product.kernel


RS = hopper.Configuration(128, 64, rs=True)


def every_kernel() -> dict[str, Kernel]:
    """One of each source file."""
    odd = torch.zeros(301, 1001, dtype=torch.bfloat16)
    plan = hopper.plan(Problem.of(odd, odd.T), named("h200"), hopper.Configuration(128, 64, cluster=2, split_k=3))
    few = skinny.plan(Problem.of(torch.zeros(4, 32), torch.zeros(32, 48)), named("h200"))
    by_vector = gemv.plan(Problem.of(torch.zeros(48, 32), torch.zeros(32)), named("h200"))
    fp32 = Problem.of(odd.float(), odd.float().T)
    terms = hopper.plan(fp32, named("h200"), hopper.Configuration(128, 64))
    in_registers = hopper.plan(Problem.of(torch.zeros(300, 1024), torch.zeros(1024, 64)), named("h200"), RS)
    small = Problem.of(torch.zeros(64, 32), torch.zeros(48, 32).T)
    kernels = [
        simt.plan(small, named("h200"), simt.TILES[4][-1]).product.kernel,
        FP64.plan(small, named("h200"), Cut(TILES_OF_DOUBLES[0])).product.kernel,
        fp32_mma.plan(fp32, named("a100"), Cut(TILES_OF_TERMS[0])).product.kernel,
        HALF.plan(Problem.of(odd, odd.T), named("a100"), Cut(LARGE_TILES_OF_HALVES[0])).product.kernel,
        outer.plan(small, named("h200")).product.kernel,
        *(each.launches[0].kernel for each in (few, by_vector)),
        *(launch.kernel for each in (plan, terms, in_registers) for launch in each.launches),
    ]
    return {k.entry: k for k in kernels}


GEMMS = ("gemm", "gemm_fp32", "gemm_fp32_rs")
ENTRIES = ("simt", "mma", "skinny", "gemv", "outer", "split", "realign", *GEMMS, "split_k_reduce")


@dataclass(frozen=True, kw_only=True)
class Constants(KernelConstants):
    tile_n: int


@dataclass(frozen=True, kw_only=True)
class Parameters(ParameterBlock):
    m: Int32


def small_kernel(wgmma: Wgmma | None = None) -> Kernel:
    return Kernel.of(
        *("f", "kernels/f.cu", Constants(tile_n=8), Parameters(m=3)), threads=128, shared_bytes=64, wgmma=wgmma
    )


DECLARATIONS = (
    "namespace tilesmith {\n"
    "inline constexpr int max_batch_dims = 3;\n"
    "inline constexpr int tile_k = 64;\n"
    "namespace ptx {}\n"
    "}  // namespace tilesmith\n"
    '#include "element.cuh"\n'
    "namespace tilesmith {\n"
    "}  // namespace tilesmith\n"
    "namespace plan {\n"
    "constexpr int tile_n = 8;\n"
    "inline constexpr int threads = 128;\n"
    "inline constexpr int shared_bytes = 64;\n"
    "struct Parameters {\n"
    "  int m;\n"
    "};\n"
    "static_assert(sizeof(Parameters) == 4);\n"
    "}  // namespace plan\n"
)


def test_a_kernels_file_follows_what_it_is_compiled_with() -> None:
    assert source.render(small_kernel()) == DECLARATIONS + '#include "kernels/f.cu"\n'


@pytest.mark.parametrize("entry", ENTRIES)
def test_headers_that_declare_parameters_come_before_them(entry: str) -> None:
    k = every_kernel()[entry]
    text = source.render(k)
    assert all(text.index(f'#include "{name}"') < text.index("struct Parameters") for name in k.headers)
    assert text.splitlines()[-1] == f'#include "{k.source}"'


def test_constants_say_how_the_operands_lie() -> None:
    lines = source.render(every_kernel()["simt"]).splitlines()
    assert "constexpr bool a_along_k = true;" in lines
    assert "using Accumulator = float;" in lines
    lines = source.render(every_kernel()["gemm"]).splitlines()
    assert "constexpr bool b_mn_major = false;" in lines
    assert "using Output = float;" in lines  # partial products


@pytest.mark.parametrize(
    ("in_registers", "a", "operands", "add", "majors", "inputs"),
    [
        (False, "unsigned long long a", "%4, %5", "%6", "0, 1", '"l"(a)'),
        # An A in registers has no layout.
        (
            True,
            "const unsigned (&a)[4]",
            "{%4, %5, %6, %7}, %8",
            "%9",
            "1",
            '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])',
        ),
    ],
    ids=["descriptor", "registers"],
)
def test_the_product_instruction_comes_between_the_parameters_and_the_kernels_file(
    in_registers: bool, a: str, operands: str, add: str, majors: str, inputs: str
) -> None:
    wgmma = Wgmma(8, torch.float16, False, True, a_in_registers=in_registers)
    assert source.render(small_kernel(wgmma)) == (
        f"{DECLARATIONS}"
        "namespace tilesmith::ptx {\n"
        "// sum += A B, or sum = A B, of operands that matrix descriptors describe; or an A in registers.\n"
        f"__device__ __forceinline__ void wgmma(float (&sum)[4], {a}, unsigned long long b, bool accumulate) {{\n"
        "  asm volatile(\n"
        f'      "{{\\n.reg .pred accumulate;\\nsetp.ne.b32 accumulate, {add}, 0;\\n"\n'
        '      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "\n'
        f'      "{{%0, %1, %2, %3}}, {operands}, accumulate, 1, 1, {majors};\\n}}"\n'
        '      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])\n'
        f'      : {inputs}, "l"(b), "r"(static_cast<int>(accumulate)));\n'
        "}\n"
        "}  // namespace tilesmith::ptx\n"
        '#include "kernels/f.cu"\n'
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", sorted({n for _, n in tiles.TILES}))
def test_the_product_instruction_has_the_types_and_layouts_of_the_plan(n: int, dtype: torch.dtype) -> None:
    name = {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    for a_mn_major in (False, True):
        for b_mn_major in (False, True):
            text = source.render(small_kernel(Wgmma(n, dtype, a_mn_major, b_mn_major)))
            assert f"m64n{n}k16.f32.{name}.{name} " in text
            assert f"accumulate, 1, 1, {int(a_mn_major)}, {int(b_mn_major)};" in text
            assert re.findall(r'"\+f"\(sum\[(\d+)\]\)', text) == [str(i) for i in range(n // 2)]
            # The sums, the two descriptors, and the number that says whether to add.
            assert sorted(map(int, re.findall(r"%(\d+)", text))) == list(range(n // 2 + 3))
            wgmma = Wgmma(n, dtype, a_mn_major, b_mn_major, a_in_registers=True)
            text = source.render(small_kernel(wgmma))
            assert f"m64n{n}k16.f32.{name}.{name} " in text
            assert f"accumulate, 1, 1, {int(b_mn_major)};" in text
            # Four registers in place of one of the descriptors.
            assert sorted(map(int, re.findall(r"%(\d+)", text))) == list(range(n // 2 + 6))


def test_equal_kernels_give_equal_text_and_others_do_not() -> None:
    one = kernel(torch.zeros(64, 32), torch.zeros(32, 48))
    assert source.render(one) == source.render(kernel(torch.ones(64, 32), torch.ones(32, 48)))
    texts = {
        source.render(simt.plan(Problem.of(a, b), named("h200"), tile).product.kernel)
        for tile in simt.TILES[4]
        for a in (torch.zeros(64, 64), torch.zeros(64, 64).T, torch.zeros(63, 63))
        for b in (torch.zeros(a.shape), torch.zeros(a.shape).T)
    }
    assert len(texts) == len(simt.TILES[4]) * 6


def test_equal_tensor_core_kernels_give_equal_text_and_others_do_not() -> None:
    def texts(value: float) -> list[str]:
        return [
            source.render(hopper.plan(Problem.of(x, y), named("h200"), hopper.Configuration(128, n)).product.kernel)
            for n in (64, 128)
            for dtype in (torch.float16, torch.bfloat16)
            for a in (torch.full((256, 256), value, dtype=dtype),)
            for x in (a, a.T)
            for y in (a, a.T)
        ]

    assert texts(0.0) == texts(1.0)
    assert len(set(texts(0.0))) == 16


def closure(text: str) -> set[str]:
    """The files that a text includes, and all that they include."""
    found: set[str] = set()
    waiting = INCLUDE.findall(text)
    while waiting:
        if (next_one := waiting.pop()) not in found:
            found.add(next_one)
            waiting += INCLUDE.findall(source.headers()[next_one])
    return found


def lines_of(text: str) -> int:
    """Of all those files, but for the instructions."""
    return sum(len(source.headers()[name].splitlines()) for name in closure(text) if not name.startswith("ptx/"))


def of_the_catalogue() -> dict[tuple[str, ...], Kernel]:
    """A kernel of Hopper's for each choice of parts."""
    return {k.parts: k for family in (hopper, tf32) for k in family.kernels(named("h200"))}


def test_the_products_of_16_bits_are_short_enough_to_be_read() -> None:
    """gemm.cu with all that it includes, and with the parts of a plain product, which knows nothing of epilogues."""
    assert lines_of('#include "kernels/hopper/gemm.cu"\n') < 500
    square = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    unit = source.render(kernel(square, square))
    assert lines_of(unit) < 1050
    assert not {name for name in closure(unit) if re.search("epilogue|activat|residual|lines|scales", name)}


def test_every_part_is_picked_by_a_kernel() -> None:
    folder = PACKAGE / "kernels" / "hopper" / "parts"
    picked = {part for parts in of_the_catalogue() for part in parts}
    assert picked == {f"kernels/hopper/parts/{path.name}" for path in folder.iterdir()}


def test_kernels_of_other_parts_are_others() -> None:
    k = every_kernel()["gemm"]
    assert replace(k, parts=k.parts[1:]) != k
    assert hash(replace(k, parts=k.parts[1:])) != hash(k)
    includes = [f'#include "{name}"' for name in (*k.parts, k.source)]
    assert source.render(k).splitlines()[-len(includes) :] == includes


def test_headers_are_the_files_of_the_package_under_the_names_that_includes_use() -> None:
    files = {path.relative_to(PACKAGE / "cuda").as_posix(): path for path in (PACKAGE / "cuda").rglob("*.cuh")}
    kernels = [path for path in (PACKAGE / "kernels").rglob("*") if path.suffix in (".cu", ".cuh")]
    files |= {path.relative_to(PACKAGE).as_posix(): path for path in kernels}
    assert source.headers() == {name: path.read_text() for name, path in files.items()}
    one_term = Problem.of(*[torch.zeros(64, 64)] * 2, accuracy="tf32")
    of_one_term = fp32_mma.plan(one_term, named("a100"), Cut(LARGE_TILES_OF_HALVES[0])).product.kernel
    halves = Problem.of(*[torch.zeros(64, 64, dtype=torch.float16)] * 2)
    on_turing = HALF.plan(halves, named("t4"), Cut(LARGE_TILES_ON_TURING[0])).product.kernel
    units = map(source.render, (*every_kernel().values(), *of_the_catalogue().values(), of_one_term, on_turing))
    used = set().union(*map(closure, units))
    assert {name for name in files if not name.startswith("ptx/")} <= used


def test_every_include_is_a_file_of_the_package() -> None:
    included = {name: re.findall(r'#include\s*["<](.*?)[">]', text) for name, text in source.headers().items()}
    assert all(included[k.source] for k in every_kernel().values())
    assert {target for targets in included.values() for target in targets} <= source.headers().keys()


def test_inline_ptx_is_in_the_ptx_folder_alone() -> None:
    with_asm = {name for name, text in source.headers().items() if re.search(r"\basm\b", text)}
    assert with_asm
    assert {name for name in with_asm if not name.startswith("ptx/")} == set()


def test_the_only_inline_ptx_that_is_written_for_a_plan_is_its_product_instruction() -> None:
    for entry, k in every_kernel().items():
        statements = re.findall(r"\basm\b.*?;\n(?=})", source.render(k), re.DOTALL)
        assert len(statements) == (1 if entry in GEMMS else 0)
        assert all("wgmma.mma_async" in statement for statement in statements)
        assert (k.wgmma is not None) == (entry in GEMMS)


def names_of(constants: KernelConstants) -> Iterator[str]:
    """The constants, and those inside of them."""
    for field in fields(constants):
        value = getattr(constants, field.name)
        yield from names_of(value) if isinstance(value, KernelConstants) else (field.name,)


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_constant_of_a_plan_is_used_by_the_kernel(entry: str) -> None:
    k = every_kernel()[entry]
    text = k.parameters + "".join(source.headers()[name] for name in closure(source.render(k)))
    assert set(names_of(k.constants)) <= set(re.findall(r"\w+", text))
    assert re.search(rf"__global__[^;{{]*\b{k.entry}\(", text)


def test_the_device_library_knows_no_plan() -> None:
    users = {name for name, text in source.headers().items() if re.search(r"\bplan::", text)}
    assert {name for name in users if not name.startswith("kernels/")} == set()
