"""The translation unit: constants by name, then a file of the package."""

import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
import torch

from tilesmith.device import named
from tilesmith.jit import source
from tilesmith.kernels import dot, exact, operand, simt, sm90, thin
from tilesmith.plan import Kernel, Wgmma
from tilesmith.planner import choose
from tilesmith.problem import Problem

CUDA = Path(str(resources.files("tilesmith") / "cuda"))


def kernel(a: torch.Tensor, b: torch.Tensor) -> Kernel:
    return choose(Problem.of(a, b), named("h200")).product.kernel


def every_kernel() -> dict[str, Kernel]:
    """One of each source file: simt, a small and a thin product, one by a vector, one of 16-bit floats in three stages,
    and the first stage of one of float32."""
    odd = torch.zeros(301, 1001, dtype=torch.bfloat16)
    plan = sm90.plan(Problem.of(odd, odd.T), named("h200"), sm90.Configuration(128, 64, cluster=2, splits=3))
    few = thin.plan(Problem.of(torch.zeros(4, 32), torch.zeros(32, 48)), named("h200"))
    by_vector = dot.plan(Problem.of(torch.zeros(48, 32), torch.zeros(32)), named("h200"))
    wide = sm90.plan(Problem.of(odd.float(), odd.float().T), named("h200"), sm90.Configuration(128, 64))
    small = Problem.of(torch.zeros(64, 32), torch.zeros(48, 32).T)
    kernels = [
        simt.plan(small, named("h200"), simt.TILES[4][-1]).product.kernel,
        exact.plan(small, named("h200"), exact.TILES[0]).product.kernel,
        *(each.stages[0].kernel for each in (few, by_vector, wide)),
        *(stage.kernel for stage in plan.stages),
    ]
    return {k.entry: k for k in kernels}


ENTRIES = ("simt", "exact", "thin", "dot", "split", "realign", "sm90", "reduce")


def test_constants_are_rendered_by_name_and_kind() -> None:
    text = source.render(Kernel("f", "kernels/f.cu", (("Element", "double"), ("width", 4), ("wide", True)), 0))
    assert text == (
        '#include "element.cuh"\n'
        "namespace plan {\n"
        "using Element = double;\n"
        "constexpr int width = 4;\n"
        "constexpr bool wide = true;\n"
        "}  // namespace plan\n"
        '#include "kernels/f.cu"\n'
    )


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_constant_of_a_plan_is_in_its_text_and_the_kernels_file_follows(entry: str) -> None:
    k = every_kernel()[entry]
    lines = source.render(replace(k, wgmma=None)).splitlines()
    for name, value in k.constants:
        if isinstance(value, bool):
            assert f"constexpr bool {name} = {str(value).lower()};" in lines
        elif isinstance(value, int):
            assert f"constexpr int {name} = {value};" in lines
        else:
            assert f"using {name} = {value};" in lines
    assert len(lines) == len(k.constants) + 4
    assert lines[-1] == f'#include "kernels/{entry}.cu"'


def test_constants_say_how_the_operands_lie() -> None:
    lines = source.render(every_kernel()["simt"]).splitlines()
    assert "constexpr bool a_along_k = true;" in lines
    assert "using Accumulator = float;" in lines
    lines = source.render(every_kernel()["sm90"]).splitlines()
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
def test_the_product_instruction_comes_between_the_constants_and_the_kernels_file(
    in_registers: bool, a: str, operands: str, add: str, majors: str, inputs: str
) -> None:
    constants = (("tile_n", 8),)
    wgmma = Wgmma(8, torch.float16, False, True, a_in_registers=in_registers)
    text = source.render(Kernel("f", "kernels/f.cu", constants, 0, wgmma))
    assert text == (
        '#include "element.cuh"\n'
        "namespace plan {\n"
        "constexpr int tile_n = 8;\n"
        "}  // namespace plan\n"
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
@pytest.mark.parametrize("n", sorted({n for _, n in sm90.TILES}))
def test_the_product_instruction_has_the_types_and_layouts_of_the_plan(n: int, dtype: torch.dtype) -> None:
    name = {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    for a_mn_major in (False, True):
        for b_mn_major in (False, True):
            text = source.render(Kernel("f", "kernels/f.cu", (), 0, Wgmma(n, dtype, a_mn_major, b_mn_major)))
            assert f"m64n{n}k16.f32.{name}.{name} " in text
            assert f"accumulate, 1, 1, {int(a_mn_major)}, {int(b_mn_major)};" in text
            assert re.findall(r'"\+f"\(sum\[(\d+)\]\)', text) == [str(i) for i in range(n // 2)]
            # The sums, the two descriptors, and the number that says whether to add.
            assert sorted(map(int, re.findall(r"%(\d+)", text))) == list(range(n // 2 + 3))
            wgmma = Wgmma(n, dtype, a_mn_major, b_mn_major, a_in_registers=True)
            text = source.render(Kernel("f", "kernels/f.cu", (), 0, wgmma))
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
            source.render(sm90.plan(Problem.of(x, y), named("h200"), sm90.Configuration(128, n)).product.kernel)
            for n in (64, 128)
            for dtype in (torch.float16, torch.bfloat16)
            for a in (torch.full((256, 256), value, dtype=dtype),)
            for x in (a, a.T)
            for y in (a, a.T)
        ]

    assert texts(0.0) == texts(1.0)
    assert len(set(texts(0.0))) == 16


def parts_of(entry: str) -> set[str]:
    """The file of a kernel, those that only it includes, and what kernels share that know their plans."""
    own = {f"kernels/{entry}.cu", *(name for name in source.headers() if name.startswith(f"kernels/{entry}/"))}
    included = set(re.findall(r'#include "(kernels/\w+\.cuh)"', "".join(source.headers()[name] for name in own)))
    return own | included


def test_headers_are_the_files_of_the_package_under_the_names_that_includes_use() -> None:
    files = {path.relative_to(CUDA).as_posix(): path for path in CUDA.rglob("*") if path.suffix in (".cu", ".cuh")}
    assert source.headers() == {name: path.read_text() for name, path in files.items()}
    of_kernels = {name for name in source.headers() if name.startswith("kernels/")}
    assert of_kernels == {name for entry in ENTRIES for name in parts_of(entry)}
    assert {"element.cuh", "ptx/convert.cuh", "ptx/wgmma.cuh"} <= source.headers().keys()


def test_every_include_is_a_file_of_the_package() -> None:
    included = {name: re.findall(r'#include\s*["<](.*?)[">]', text) for name, text in source.headers().items()}
    assert all(included[f"kernels/{entry}.cu"] for entry in ENTRIES)
    assert {target for targets in included.values() for target in targets} <= source.headers().keys()


def test_inline_ptx_is_in_the_ptx_folder_alone() -> None:
    with_asm = {name for name, text in source.headers().items() if re.search(r"\basm\b", text)}
    assert with_asm
    assert {name for name in with_asm if not name.startswith("ptx/")} == set()


def test_the_only_inline_ptx_that_is_written_for_a_plan_is_its_product_instruction() -> None:
    for entry, k in every_kernel().items():
        statements = re.findall(r"\basm\b.*?;\n(?=})", source.render(k), re.DOTALL)
        assert len(statements) == (1 if entry == "sm90" else 0)
        assert all("wgmma.mma_async" in statement for statement in statements)
        assert (k.wgmma is not None) == (entry == "sm90")


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_constant_of_a_plan_is_used_by_the_kernel(entry: str) -> None:
    k = every_kernel()[entry]
    assert k.source in parts_of(entry)
    text = "".join(source.headers()[name] for name in parts_of(entry))
    assert [name for name, _ in k.constants if not re.search(rf"\bplan::{name}\b", text)] == []
    assert set(re.findall(r"\bplan::(\w+)", text)) == {name for name, _ in k.constants}
    assert re.search(rf"__global__[^;{{]*\b{k.entry}\(", text)


def test_kernels_alone_know_the_plan() -> None:
    users = {name for name, text in source.headers().items() if re.search(r"\bplan::", text)}
    assert users <= {name for entry in ENTRIES for name in parts_of(entry)}
    assert users >= {f"kernels/{entry}.cu" for entry in ENTRIES}


def test_python_and_cuda_agree_on_the_sizes_that_both_know() -> None:
    def value(name: str) -> int:
        (found,) = re.findall(rf"^constexpr int {name} = (\d+);", "\n".join(source.headers().values()), re.MULTILINE)
        return int(found)

    assert value("most_batch_dimensions") == operand.MOST_BATCH_DIMENSIONS
    assert value("tile_k") == operand.TILE_K
