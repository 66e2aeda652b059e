"""The translation unit: constants by name, then a file of the package."""

import re
from importlib import resources
from pathlib import Path

import torch

from tilesmith.device import named
from tilesmith.jit import source
from tilesmith.kernels import simt
from tilesmith.plan import Kernel
from tilesmith.planner import choose
from tilesmith.problem import Problem

CUDA = Path(str(resources.files("tilesmith") / "cuda"))


def kernel(a: torch.Tensor, b: torch.Tensor) -> Kernel:
    return choose(Problem.of(a, b), named("h200")).kernel


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


def test_every_constant_of_a_plan_is_in_its_text_and_the_kernels_file_follows() -> None:
    k = kernel(torch.zeros(64, 32), torch.zeros(48, 32).T)
    lines = source.render(k).splitlines()
    assert "constexpr bool a_along_k = true;" in lines
    assert "using Accumulator = float;" in lines
    for name, value in k.constants:
        if isinstance(value, bool):
            assert f"constexpr bool {name} = {str(value).lower()};" in lines
        elif isinstance(value, int):
            assert f"constexpr int {name} = {value};" in lines
        else:
            assert f"using {name} = {value};" in lines
    assert len(lines) == len(k.constants) + 4
    assert lines[-1] == '#include "kernels/simt.cu"'


def test_equal_kernels_give_equal_text_and_others_do_not() -> None:
    one = kernel(torch.zeros(64, 32), torch.zeros(32, 48))
    assert source.render(one) == source.render(kernel(torch.ones(64, 32), torch.ones(32, 48)))
    texts = {
        source.render(simt.plan(Problem.of(a, b), named("h200"), tile).kernel)
        for tile in simt.TILES[4]
        for a in (torch.zeros(64, 64), torch.zeros(64, 64).T, torch.zeros(63, 63))
        for b in (torch.zeros(a.shape), torch.zeros(a.shape).T)
    }
    assert len(texts) == len(simt.TILES[4]) * 6


def test_headers_are_the_files_of_the_package_under_the_names_that_includes_use() -> None:
    files = {path.relative_to(CUDA).as_posix(): path for path in CUDA.rglob("*") if path.suffix in (".cu", ".cuh")}
    assert source.headers() == {name: path.read_text() for name, path in files.items()}
    assert {"element.cuh", "ptx/convert.cuh", "kernels/simt.cu"} <= source.headers().keys()


def test_every_include_is_a_file_of_the_package() -> None:
    included = {name: re.findall(r'#include\s*["<](.*?)[">]', text) for name, text in source.headers().items()}
    assert included["kernels/simt.cu"]
    assert {target for targets in included.values() for target in targets} <= source.headers().keys()


def test_inline_ptx_is_in_the_ptx_folder_alone() -> None:
    with_asm = {name for name, text in source.headers().items() if re.search(r"\basm\b", text)}
    assert with_asm
    assert {name for name in with_asm if not name.startswith("ptx/")} == set()


def test_every_constant_of_a_plan_is_used_by_the_kernel() -> None:
    k = kernel(torch.zeros(64, 32), torch.zeros(32, 48))
    text = source.headers()[k.source]
    assert [name for name, _ in k.constants if not re.search(rf"\bplan::{name}\b", text)] == []
    assert re.search(rf"__global__[^;{{]*\b{k.entry}\(", text)
