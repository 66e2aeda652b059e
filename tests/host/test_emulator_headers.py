"""The emulator knows every instruction that the kernels have a function for."""

import re
from importlib import resources
from pathlib import Path

import pytest

CUDA = Path(str(resources.files("tilesmith"))) / "cuda"
EMULATED = Path(str(resources.files("tilesmith"))) / "emulator" / "cxx"
FUNCTION = re.compile(r"__device__ __forceinline__ [\w:<>, ]+?[ &*](\w+)\(")


def functions(text: str) -> set[str]:
    return set(FUNCTION.findall(text))


@pytest.mark.parametrize("name", sorted(path.name for path in (CUDA / "ptx").glob("*.cuh")))
def test_every_function_of_an_instruction_is_emulated(name: str) -> None:
    wanted = functions((CUDA / "ptx" / name).read_text())
    assert wanted
    assert wanted <= functions((EMULATED / "ptx" / name).read_text())
