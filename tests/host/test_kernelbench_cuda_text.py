"""The CUDA part of written modules: that it needs no other file, compiles, and has the plan's numbers in it."""

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

from tilesmith.device import named
from tilesmith.jit import compiler, source
from tilesmith.jit.driver import BUFFERS
from tilesmith.kernelbench.cuda_text import elementwise_text, general_kernels, general_text, planned_text
from tilesmith.kernelbench.flatten import flattened, function, without_comments
from tilesmith.kernels import sm90
from tilesmith.plan import Plan
from tilesmith.planner import choose
from tilesmith.problem import Problem

H200 = named("h200")


def product(a: tuple[int, ...], b: tuple[int, ...]) -> Problem:
    return Problem.of(torch.empty(a, device="meta"), torch.empty(b, device="meta"))


def plans() -> dict[str, Plan]:
    """One of each kind: with planes, with a raw A and a reduction, with a single step, and in doubles."""
    return {
        "planes": choose(product((8205, 2949), (2949, 5921)), H200),
        "raw": choose(product((256, 524288), (524288, 256)), H200),
        "step": sm90.plan(product((32768, 64), (64, 32768)), H200, sm90.Configuration(128, 256)),
        "batch": choose(product((128, 512, 1024), (128, 1024, 2048)), H200),
        "exact": choose(product((32768, 32), (32, 32768)), H200),
        "thin": choose(product((16, 8192), (8192, 1024)), H200),
        "dot": choose(product((2048, 1048576), (1048576, 1)), H200),
    }


PLANS = plans()


def test_comments_go_and_strings_stay() -> None:
    text = '#include "x.cuh"  // why\n\n/* a\n b */ int x = 1; // "y"\nasm("// \\" /* */ %0;" : "=r"(x));\n'
    assert without_comments(text) == '#include "x.cuh"\n int x = 1;\nasm("// \\" /* */ %0;" : "=r"(x));\n'


@pytest.mark.parametrize("name", PLANS)
def test_a_text_needs_no_other_file_and_has_shared_headers_once(name: str) -> None:
    kernels = [stage.kernel for stage in PLANS[name].stages]
    text = flattened(kernels, "planned")
    assert "#include" not in text
    assert "//" not in re.sub(r'"[^"\n]*"', "", text)
    assert text.count("struct Vector ") <= 1 + text.count("struct Vector<")
    for i, kernel in enumerate(kernels):
        assert re.search(rf"\b{kernel.entry}\(const __grid_constant__ Parameters", text)
        assert f"namespace kernel_{i} {{" in text
        for constant, value in kernel.constants:
            assert re.search(rf"\b{constant} = {str(value).lower() if isinstance(value, bool) else value};", text)
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("name", ["planes", "raw", "exact", "thin", "dot"])
def test_planned_kernels_compile_as_one_text(name: str) -> None:
    kernels = [stage.kernel for stage in PLANS[name].stages]
    cubin = compiler.compile(flattened(kernels, "planned"), "sm_90a")
    for i, kernel in enumerate(kernels):
        assert f"kernel_{i}9tilesmith{len(kernel.entry)}{kernel.entry}".encode() in cubin


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_general_kernels_compile_from_turing_on(arch: str) -> None:
    cubin = compiler.compile(flattened(general_kernels(H200), "general"), arch)
    assert all(f"kernel_{i}9tilesmith4simt".encode() in cubin for i in range(4))


def test_general_kernels_read_single_elements_in_any_direction() -> None:
    found = [dict(kernel.constants) for kernel in general_kernels(H200)]
    assert [(c["a_along_k"], c["b_along_k"]) for c in found] == [
        *((True, True), (True, False), (False, True), (False, False))
    ]
    for c in found:
        assert (c["Index"], c["batch_rank"], c["a_vector"], c["b_vector"], c["out_vector"]) == ("long long", 1, 1, 1, 1)
        same = ("tile_m", "tile_n", "threads", "Element")
        assert [c[name] for name in same] == [found[0][name] for name in same]


def numbers(text: str, name: str) -> list[str]:
    """What is between the braces of an array's definition."""
    found = re.search(rf"\b{name}\[\] = \{{(.*?)\}};\n", text, re.DOTALL)
    assert found is not None, name
    return [each.strip() for each in re.split(r"[{},\n]+", found[1]) if each.strip()]


@pytest.mark.parametrize("name", PLANS)
def test_tables_have_the_numbers_of_the_plan(name: str) -> None:
    plan = PLANS[name]
    text = planned_text(plan)
    table = iter(numbers(text, "stages"))
    for i, stage in enumerate(plan.stages):
        assert bytes(map(int, numbers(text, f"arguments_{i}"))) == stage.arguments
        if stage.addresses:
            expected = [(x.position, BUFFERS.index(x.buffer), x.offset) for x in stage.addresses]
            assert list(map(int, numbers(text, f"addresses_{i}"))) == [n for each in expected for n in each]
        if stage.tensor_maps:
            assert numbers(text, f"maps_{i}") == [
                str(value)
                for x in stage.tensor_maps
                for value in (
                    *(x.position, BUFFERS.index(x.buffer), x.offset),
                    "CU_TENSOR_MAP_DATA_TYPE_" + str(x.dtype).removeprefix("torch.").upper(),
                    *(len(x.sizes), *x.sizes, *x.strides, *x.box),
                    "CU_TENSOR_MAP_SWIZZLE_" + {16: "NONE"}.get(x.line_bytes, f"{x.line_bytes}B"),
                )
            ]
        expected_row = [
            f"(const void*){function(i, stage.kernel)}",
            *map(str, (*stage.grid, stage.threads, stage.kernel.shared_bytes, stage.cluster)),
            str(stage.awaits_predecessor).lower(),
            *(f"arguments_{i}", str(len(stage.arguments))),
            *((f"addresses_{i}" if stage.addresses else "nullptr"), str(len(stage.addresses))),
            *((f"maps_{i}" if stage.tensor_maps else "nullptr"), str(len(stage.tensor_maps))),
        ]
        assert [next(table) for _ in expected_row] == expected_row
    assert next(table, None) is None


def test_buffers_of_a_plan_without_packed_operands_are_those_of_the_launch() -> None:
    assert BUFFERS[:4] == ("a", "b", "out", "workspace")
    stages = [stage for plan in PLANS.values() for stage in plan.stages]
    used = {x.buffer for stage in stages for x in stage.addresses}
    used |= {x.buffer for stage in stages for x in stage.tensor_maps}
    assert used == set(BUFFERS[:4])


def host_part(text: str) -> str:
    """The C++ of a text, without its kernels."""
    return text[text.index("#include <cuda") :]


def assert_valid_cpp(text: str, folder: Path) -> None:
    include = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "include"
    (folder / "host.cpp").write_text(text)
    command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-isystem{include}", "host.cpp"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_launches_of_a_plan_are_valid_cpp(tmp_path: Path) -> None:
    plan = PLANS["raw"]
    declared = "".join(
        f"namespace planned::kernel_{i}::tilesmith {{ void {stage.kernel.entry}(); }}\n"
        for i, stage in enumerate(plan.stages)
    )
    assert_valid_cpp(declared + host_part(planned_text(plan).removesuffix("#endif\n")), tmp_path)


def test_the_launches_of_any_product_are_valid_cpp(tmp_path: Path) -> None:
    fields = re.search(r"struct Product \{.*?\n\};", source.headers()["kernels/simt.cu"], re.DOTALL)
    assert fields is not None
    constants = "constexpr int tile_m = 64, tile_n = 128, threads = 128, shared_bytes = 1, batch_rank = 1;"
    declared = "".join(
        f"namespace general::kernel_{i}::plan {{ {constants} }}\n"
        f"namespace general::kernel_{i}::tilesmith {{\n"
        f"using Element = float; using Output = float;\n{fields[0]}\n"
        "struct Parameters : Product {};\nvoid simt(Parameters);\n}\n"
        for i in range(4)
    )
    assert_valid_cpp(declared + host_part(general_text(H200)), tmp_path)


def test_elementwise_kernels_compile_from_turing_on() -> None:
    device_part = elementwise_text().replace("#include <cuda_runtime.h>\n", "")
    device_part = device_part[: device_part.index("const char* multiply_rows")]
    for arch in ("sm_75", "sm_90a"):
        cubin = compiler.compile(device_part, arch)
        assert b"scale_rows" in cubin
        assert b"clear_triangle" in cubin
