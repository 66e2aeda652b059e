"""NVRTC: what it makes of our kernels for every architecture, and what we say when it is not there."""

import builtins
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
import torch
from launched import constants_of
from machine_code import assert_does_not_compile_with, disassembled

from tilesmith import CompilationError, UnavailableError
from tilesmith.core.device import ARCHITECTURES, Device, named
from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.simt import family as simt
from tilesmith.kernels.simt import launch as simt_launch
from tilesmith.runtime import cache, compiler, source

TILE_128 = next(tile for tile in simt.TILES[4] if (tile.m, tile.n) == (128, 128))
TRIVIAL = 'extern "C" __global__ void f(float* x) { *x = 1; }'


def test_a_translation_unit_becomes_a_cubin_with_its_kernel() -> None:
    cubin = compiler.compile(TRIVIAL, "sm_90a")
    assert cubin.startswith(b"\x7fELF")
    assert b".text.f\0" in cubin


def test_the_packages_headers_can_be_included() -> None:
    text = '#include "element.cuh"\nextern "C" __global__ void g(tilesmith::float16* x) { x->bits = 1; }'
    assert b".text.g\0" in compiler.compile(text, "sm_75")


def test_a_syntax_error_carries_nvrtcs_log_and_the_source() -> None:
    with pytest.raises(CompilationError) as info:
        compiler.compile('extern "C" __global__ void f() { int x = oops; }', "sm_80")
    for part in ('identifier "oops" is undefined', "tilesmith.cu(1)", "sm_80", "NVRTC_ERROR_COMPILATION", "int x ="):
        assert part in str(info.value)


def test_an_unknown_architecture_is_a_compilation_error() -> None:
    with pytest.raises(CompilationError, match="sm_12345"):
        compiler.compile(TRIVIAL, "sm_12345")


def test_a_constant_that_contradicts_the_kernel_does_not_compile() -> None:
    kernel = simt.plan(*problem(torch.float32, ALIGNED), simt.TILES[4][0]).product.kernel
    assert_does_not_compile_with(kernel, "shared_bytes", -16)


def test_the_version_is_nvrtcs_own() -> None:
    installed = metadata.version("nvidia-cuda-nvrtc").split(".")
    assert compiler.version() == (int(installed[0]), int(installed[1]))


def test_resources_are_those_that_ptxas_reports() -> None:
    light = compiler.resources(TRIVIAL, "sm_90a")
    assert 0 < light.registers <= 16
    assert (light.stack_bytes, light.spill_store_bytes, light.spill_load_bytes) == (0, 0, 0)
    heavy = """
        extern "C" __global__ void __launch_bounds__(1024, 2) f(float* x) {
          float v[64];
          #pragma unroll
          for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];
          __syncthreads();
          #pragma unroll
          for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = v[i] + v[63 - i] * v[(i * 7) % 64];
        }"""
    spilled = compiler.resources(heavy, "sm_90a")
    assert spilled.registers == 32
    assert spilled.spill_store_bytes > 0
    assert spilled.spill_load_bytes > 0
    stacked = 'extern "C" __global__ void f(int* x) { int v[99]; for (int i : v) v[x[i]] = x[0]; *x = v[x[1]]; }'
    assert compiler.resources(stacked, "sm_90a").stack_bytes >= 396


@pytest.fixture
def fresh_lookup() -> Iterator[None]:
    compiler._nvrtc.cache_clear()
    compiler.version.cache_clear()
    yield
    compiler._nvrtc.cache_clear()
    compiler.version.cache_clear()


@pytest.mark.usefixtures("fresh_lookup")
@pytest.mark.parametrize("missing", ["No module named 'cuda'", "Failure finding libnvrtc.so.13"])
def test_missing_bindings_and_a_missing_library_say_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_cuda(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("cuda"):
            raise ModuleNotFoundError(missing)
        return real(name, *rest, **more)

    def without_bindings(name: str) -> str:
        if name == "cuda-bindings":
            raise metadata.PackageNotFoundError(name)
        return "13.0"

    def not_found() -> None:
        raise RuntimeError(missing)

    if "cuda" in missing:
        monkeypatch.setattr(builtins, "__import__", without_cuda)
        monkeypatch.setattr(metadata, "version", without_bindings)
        command = 'pip install "cuda-bindings>=13,<14"'  # NVRTC is here
    else:
        command = 'pip install --force-reinstall "cuda-bindings>=13,<14" "nvidia-cuda-nvrtc>=13,<14"'
        monkeypatch.setattr(compiler._nvrtc(), "nvrtcVersion", not_found)
    for call in (lambda: compiler.compile(TRIVIAL, "sm_90a"), compiler.version, lambda: cache.cubin(TRIVIAL, "sm_80")):
        with pytest.raises(UnavailableError) as info:
            call()
        assert missing in str(info.value)
        assert str(info.value).endswith(command)


ALIGNED = "aligned, by rows"  # a's vectors run along K, b's across it
ODD = "odd, transposed"  # single elements, a's across K, b's along it


GPU = named("a100")  # whose products have no other kernels


def problem(dtype: torch.dtype, layout: str) -> tuple[Problem, Device]:
    """A product whose operands lie in this way, and a GPU."""
    size = 4096 if layout == ALIGNED else 4097
    a, b = (torch.empty(size, size, dtype=dtype, device="meta") for _ in "ab")
    return Problem.of(*((a, b) if layout == ALIGNED else (a.T, b.T))), GPU


def plans_for(problem: Problem, device: Device) -> list[Plan]:
    return [candidate.plan() for candidate in simt.candidates(problem, device)]


def only_launch(plan: Plan) -> KernelLaunch:
    (launch,) = plan.launches
    return launch


def covering(dtype: torch.dtype) -> list[Plan]:
    """Every tile that is offered, for operands that are read in vectors and by single elements."""
    layouts = (problem(dtype, layout) for layout in (ALIGNED, ODD))
    return list({only_launch(plan).kernel: plan for each in layouts for plan in plans_for(*each)}.values())


def assert_nothing_spills(plan: Plan, arch: str) -> None:
    launch = only_launch(plan)
    used = compiler.resources(source.render(launch.kernel), arch)
    assert (used.stack_bytes, used.spill_store_bytes, used.spill_load_bytes) == (0, 0, 0), plan.name
    blocks = constants_of(launch.kernel, simt_launch.Constants).blocks_per_sm
    assert used.registers * launch.kernel.threads * blocks <= 65536


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8, torch.bfloat16], ids=str)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_kernel_spills_or_has_a_stack(arch: str, dtype: torch.dtype) -> None:
    plans = covering(dtype)
    assert len({plan.name for plan in plans}) >= 2
    for plan in plans:
        assert_nothing_spills(plan, arch)


WIDE_DTYPES = [torch.float32, torch.float64, torch.int8]


@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=str)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_kernel_spills_with_wide_indices_and_batches(arch: str, dtype: torch.dtype) -> None:
    a = torch.empty(2, 1, 64, 2**24, dtype=dtype, device="meta")[..., :64]
    b = torch.empty(1, 3, 64, 2**24, dtype=dtype, device="meta")[..., :64]
    plans = plans_for(Problem.of(a, b.mT), GPU)
    assert plans
    for plan in plans:
        assert constants_of(only_launch(plan).kernel, simt_launch.Constants).Index == "long long"
        assert_nothing_spills(plan, arch)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_every_type_and_result_type_compiles(arch: str) -> None:
    for dtype, out_dtype in [
        *((x, x) for x in (torch.float16, torch.uint8, torch.int16, torch.int32)),
        *((torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.int8, torch.int32)),
    ]:
        a = torch.empty(64, 64, dtype=dtype, device="meta")
        *_, smallest = plans_for(Problem.of(a, a, out_dtype=out_dtype), named("h200"))
        assert_nothing_spills(smallest, arch)


@pytest.fixture(scope="module")
def sass() -> list[str]:
    """The instructions of the float32 kernel with the 128x128 tile on Hopper, a label or an instruction a line."""
    text = disassembled(only_launch(simt.plan(*problem(torch.float32, ALIGNED), TILE_128)).kernel)
    found = re.findall(r"^(\.L_\w+:)|^\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", text, re.MULTILINE)
    return [label or instruction for label, instruction in found]


def main_loop(sass: list[str]) -> list[str]:
    """The body of the loop over K: from the label that a later branch goes back to, to that branch."""
    labels = {line.rstrip(":"): i for i, line in enumerate(sass) if line.endswith(":")}
    loops = []
    for i, line in enumerate(sass):
        target = re.search(r"\bBRA.*`\((\.L_\w+)\)", line)
        if target and labels[target[1]] < i and any("FFMA" in x for x in sass[labels[target[1]] : i]):
            loops.append(sass[labels[target[1]] : i + 1])
    (loop,) = loops
    return loop


def count(instructions: list[str], name: str) -> int:
    return sum(re.match(rf"(@!?U?P\w+ )?{name}\b", re.sub(r"\s+", " ", x)) is not None for x in instructions)


def test_the_main_loop_multiplies_each_pair_once_and_does_little_else(sass: list[str]) -> None:
    tile, loop = TILE_128, main_loop(sass)
    products = tile.thread_m * tile.thread_n * tile.k
    tiles_a_turn, rest = divmod(count(loop, "FFMA"), products)
    assert tiles_a_turn >= 1 and rest == 0
    assert count(loop, "FMUL") == count(loop, "FADD") == 0
    assert count(loop, "FFMA") / len(loop) > 0.85
    assert count(loop, r"BAR\.SYNC") == tiles_a_turn  # one is enough


def test_memory_is_read_in_vectors_of_128_bits(sass: list[str]) -> None:
    tile, loop = TILE_128, main_loop(sass)
    steps = count(loop, "FFMA") // (tile.thread_m * tile.thread_n)
    assert count(loop, r"LDS\.128") == steps * (tile.thread_m + tile.thread_n) // 4
    assert count(loop, "LDS") == count(loop, r"LDS\.128")
    needed = steps // tile.k * (tile.m + tile.n) * tile.k // (4 * tile.threads)
    assert count(loop, r"LDG\.E\.128") in (needed, 2 * needed)  # a last, partial tile may have its own loads
    assert count(loop, "LDG") == count(loop, r"LDG\.E\.128")
    assert count(sass, "LDL") == count(sass, "STL") == 0
