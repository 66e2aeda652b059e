"""The CUDA part of written modules: that it needs no other file, compiles, and has the plan's numbers in it."""

import re
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cuda.bindings import driver
from launched import constants_of, places_of

from tilesmith.core.device import named
from tilesmith.core.plan import Kernel, Plan
from tilesmith.core.problem import Problem
from tilesmith.kernelbench.cuda_text import (
    factors_text,
    general_kernels,
    general_text,
    launch_numbers,
    planned_kernels,
    planned_text,
    triangle_text,
)
from tilesmith.kernelbench.flatten import flattened, function, without_comments
from tilesmith.kernelbench.products import ProductSpec
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.simt import launch as simt_launch
from tilesmith.planner import choose
from tilesmith.runtime import compiler

H200 = named("h200")
SUPPORT = Path(__file__).parents[1] / "support"
PASSED = ("a", "b", "out", "workspace", "bias")


def product(a: tuple[int, ...], b: tuple[int, ...]) -> Problem:
    return Problem.of(torch.empty(a, device="meta"), torch.empty(b, device="meta"))


# A layer of an MLP.
EPILOGUE = ProductSpec(
    a_shape=(1024, 512),
    a_strides=(512, 1),
    b_shape=(512, 2048),
    b_strides=(1, 512),
    has_bias=True,
    activation="gelu",
)


def plans() -> dict[str, Plan]:
    """One of each kind: with terms, with a raw A and a reduction, with a single step, in doubles, and with more than a
    product."""
    return {
        "terms": choose(product((8205, 2949), (2949, 5921)), H200),
        "raw": choose(product((256, 524288), (524288, 256)), H200),
        "step": hopper.plan(product((32768, 64), (64, 32768)), H200, hopper.Configuration(128, 256)),
        "batch": choose(product((128, 512, 1024), (128, 1024, 2048)), H200),
        "fp64_mma": choose(product((32768, 32), (32, 32768)), H200),
        "skinny": choose(product((16, 8192), (8192, 1024)), H200),
        "gemv": choose(product((2048, 1048576), (1048576, 1)), H200),
        "epilogue": choose(EPILOGUE.problem("fp32"), H200),
        "tf32": choose(replace(EPILOGUE, activation=None).problem("tf32"), H200),
    }


PLANS = plans()


def test_comments_go_and_strings_stay() -> None:
    text = '#include "x.cuh"  // why\n\n/* a\n b */ int x = 1; // "y"\nasm("// \\" /* */ %0;" : "=r"(x));\n'
    assert without_comments(text) == '#include "x.cuh"\n int x = 1;\nasm("// \\" /* */ %0;" : "=r"(x));\n'


@pytest.mark.parametrize("name", PLANS)
def test_a_text_needs_no_other_file_and_has_shared_headers_once(name: str) -> None:
    kernels = [launch.kernel for launch in PLANS[name].launches]
    text = flattened(kernels, "planned")
    assert "#include" not in text
    assert "//" not in re.sub(r'"[^"\n]*"', "", text)
    assert text.count("struct Vector ") <= 1 + text.count("struct Vector<")
    for i, kernel in enumerate(kernels):
        assert re.search(rf"\b{kernel.entry}\(const __grid_constant__ Parameters", text)
        assert f"namespace kernel_{i} {{" in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("name", ["terms", "raw", "fp64_mma", "skinny", "gemv", "epilogue"])
def test_planned_kernels_compile_as_one_text(name: str) -> None:
    kernels = [launch.kernel for launch in PLANS[name].launches]
    cubin = compiler.compile(flattened(kernels, "planned"), "sm_90a")
    for i, kernel in enumerate(kernels):
        assert f"kernel_{i}9tilesmith{len(kernel.entry)}{kernel.entry}".encode() in cubin


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_general_kernels_compile_from_turing_on(arch: str) -> None:
    cubin = compiler.compile(flattened(general_kernels(H200), "general"), arch)
    assert all(f"kernel_{i}9tilesmith4simt".encode() in cubin for i in range(4))


def test_general_kernels_read_single_elements_in_any_direction() -> None:
    found = [constants_of(kernel, simt_launch.Constants) for kernel in general_kernels(H200)]
    assert [(c.a_along_k, c.b_along_k) for c in found] == [(True, True), (True, False), (False, True), (False, False)]
    for c in found:
        assert (c.Index, c.a_vector, c.b_vector, c.may_add) == ("long long", 1, 1, True)
        assert (c.tile_m, c.tile_n, c.Element) == (found[0].tile_m, found[0].tile_n, found[0].Element)
    assert len({kernel.threads for kernel in general_kernels(H200)}) == 1


def numbers(text: str, name: str) -> list[str]:
    """What is between the braces of an array's definition."""
    found = re.search(rf"\b{name}\[\] = \{{(.*?)\}};\n", text, re.DOTALL)
    assert found is not None, name
    return [each.strip() for each in re.split(r"[{},\n]+", found[1]) if each.strip()]


def test_tables_have_the_numbers_of_the_plans() -> None:
    plans = list(PLANS.values())
    text = planned_text(plans)
    kernels = planned_kernels(plans)
    assert numbers(text, "plans") == [
        x for i, plan in enumerate(plans) for x in (f"launches_{i}", str(len(plan.launches)))
    ]
    for number, launches in enumerate(launch_numbers(plans)):
        table = iter(numbers(text, f"launches_{number}"))
        for i, launch in enumerate(launches):
            name, kernel = f"{number}_{i}", kernels.index(launch.kernel)
            addresses, maps = list(launch.parameters.addresses()), list(launch.parameters.tensor_maps())
            written = re.search(rf"kernel_{kernel}::plan::Parameters parameters_{name} =\n(.*?);\n", text, re.DOTALL)
            assert written is not None and written[1].split() == launch.parameters.initializer().split()
            if addresses:
                expected = [(position, PASSED.index(x.buffer), x.offset) for position, x in addresses]
                assert list(map(int, numbers(text, f"addresses_{name}"))) == [n for each in expected for n in each]
            if maps:
                assert numbers(text, f"maps_{name}") == [
                    str(value)
                    for position, x in maps
                    for value in (
                        *(position, PASSED.index(x.buffer), x.offset),
                        "CU_TENSOR_MAP_DATA_TYPE_"
                        + ("TFLOAT32" if x.rounds_to_tf32 else str(x.dtype).removeprefix("torch.").upper()),
                        *(len(x.sizes), *x.sizes, *x.strides, *x.box),
                        "CU_TENSOR_MAP_SWIZZLE_" + {16: "NONE"}.get(x.line_bytes, f"{x.line_bytes}B"),
                    )
                ]
            expected_row = [
                f"(const void*){function(kernel, launch.kernel)}",
                *map(str, (*launch.grid, launch.kernel.threads, launch.kernel.shared_bytes, launch.cluster)),
                str(launch.awaits_predecessor).lower(),
                *(f"&parameters_{name}", f"sizeof(parameters_{name})"),
                *((f"addresses_{name}" if addresses else "nullptr"), str(len(addresses))),
                *((f"maps_{name}" if maps else "nullptr"), str(len(maps))),
            ]
            assert [next(table) for _ in expected_row] == expected_row
        assert next(table, None) is None


def test_launches_take_what_is_passed_to_them() -> None:
    assert f"static_assert(buffer_count == {len(PASSED)});" in planned_text(PLANS.values())
    used = {x.buffer for plan in PLANS.values() for launch in plan.launches for x in places_of(launch)}
    assert used == set(PASSED)


def declared(name: str, kernels: Sequence[Kernel]) -> str:
    """What host code needs to know of kernels: their parameters, and that there are functions."""
    types = """
        struct float16; struct bfloat16; struct RangeStats; enum class RangeCheck : int; struct Extent;
        template <typename T, int n> struct Vector { T values[n]; };
        namespace ptx { struct alignas(64) TensorMap { unsigned char bytes[128]; }; }
    """
    text = ""
    for i, kernel in enumerate(kernels):
        constants = [f"constexpr int threads = {kernel.threads}, shared_bytes = {kernel.shared_bytes};"]
        constants += kernel.constants.definitions()
        text += f"namespace {name}::kernel_{i} {{ namespace tilesmith {{ {types}"
        text += "".join(enum.declaration() for enum in dict.fromkeys(kernel.constants.enums()))
        text += "}\nnamespace plan {\n" + "\n".join(constants) + f"\n{kernel.parameters}}}\n"
        text += f"namespace tilesmith {{ void {kernel.entry}(plan::Parameters) {{}} }} }}\n"
    return text


def host_part(text: str) -> str:
    """The C++ of a text, without its kernels."""
    return text[text.index("#include <cuda") :]


def compile_cpp(text: str, folder: Path, *options: str) -> None:
    include = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "include"
    (folder / "host.cpp").write_text(text)
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-isystem{include}", *options, "host.cpp"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_launches_of_any_product_are_valid_cpp(tmp_path: Path) -> None:
    text = declared("general", general_kernels(H200)) + host_part(general_text(H200))
    compile_cpp(text, tmp_path, "-fsyntax-only")


def test_what_is_launched_are_the_plans_whatever_buffers_there_were_before(tmp_path: Path) -> None:
    plans = [PLANS[name] for name in ("raw", "terms", "epilogue", "gemv")]
    text = declared("planned", planned_kernels(plans)) + host_part(planned_text(plans).removesuffix("#endif\n"))
    compile_cpp(text + (SUPPORT / "written_launches.cpp").read_text(), tmp_path, "-o", "launches")
    calls = [(number, gpu, 7, *(2**40 * (i + 1) for i in range(5))) for number in range(4) for gpu in (0, 1)]
    # More than are kept, of which the first one comes back twice.
    moved = [(0, 0, 7, 2**40 + 4096 * i, *(2**40 * (j + 2) for j in range(4))) for i in (*range(10), 0, 9, 0)]
    calls += [*moved, (1, 0, 8, *(2**41 * (i + 1) for i in range(5)))]
    run = [str(tmp_path / "launches"), *(str(value) for call in calls for value in call)]
    *lines, allowed = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()
    expected = [line for number, _, stream, *places in calls for line in launched(plans[number], stream, places)]
    assert lines == expected
    assert int(allowed) == 2 * sum(len(plan.launches) for plan in plans)


def launched(plan: Plan, stream: int, places: list[int]) -> Iterator[str]:
    """What written_launches.cpp says of a plan's launches."""
    types, swizzles = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle
    for launch in plan.launches:
        memory = bytearray(launch.parameters.packed())
        for at, address in launch.parameters.addresses():
            memory[at : at + 8] = (places[PASSED.index(address.buffer)] + address.offset).to_bytes(8, "little")
        for at, x in launch.parameters.tensor_maps():
            name = "TFLOAT32" if x.rounds_to_tf32 else str(x.dtype).removeprefix("torch.").upper()
            dtype = int(getattr(types, f"CU_TENSOR_MAP_DATA_TYPE_{name}"))
            width = {16: "NONE"}.get(x.line_bytes, f"{x.line_bytes}B")
            swizzle = int(getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{width}"))
            sizes = [f" {size} {box}" for size, box in zip(x.sizes, x.box, strict=True)]
            text = f"{places[PASSED.index(x.buffer)] + x.offset:x} {dtype} {swizzle}:{''.join(sizes)}"
            text += "".join(f" {stride}" for stride in x.strides)
            memory[at : at + 128] = text.encode().ljust(128, b"\0")
        kernel = launch.kernel
        yield " ".join(
            str(value)
            for value in (
                *(*launch.grid, kernel.threads, kernel.shared_bytes, launch.cluster),
                *(int(launch.awaits_predecessor), stream, memory.hex()),
            )
        )


def test_parameters_that_are_written_by_name_have_the_bytes_of_the_plan(tmp_path: Path) -> None:
    launches = [launch for plan in PLANS.values() for launch in plan.launches]
    text = "#include <cstdio>\n" + declared("planned", [launch.kernel for launch in launches]) + "int main() {\n"
    for i, launch in enumerate(launches):
        name, value = f"planned::kernel_{i}::plan::Parameters", launch.parameters.initializer()
        text += f"  static const {name} p{i} = {value};\n  std::fwrite(&p{i}, sizeof(p{i}), 1, stdout);\n"
    (tmp_path / "main.cpp").write_text(text + "}\n")
    subprocess.run(["g++", "-std=c++17", "-o", "main", "main.cpp"], cwd=tmp_path, check=True)
    written = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, check=True).stdout
    assert written == b"".join(launch.parameters.packed() for launch in launches)


@pytest.mark.parametrize(("text", "kernel"), [(factors_text(), "scale_rows"), (triangle_text(), "clear_triangle")])
def test_what_stands_beside_products_compiles_from_turing_on(text: str, kernel: str) -> None:
    text = text.replace("#include <cuda_runtime.h>\n", "")
    device_part = text[: text.index("const char*")]
    for arch in ("sm_75", "sm_90a"):
        assert kernel.encode() in compiler.compile(device_part, arch)
