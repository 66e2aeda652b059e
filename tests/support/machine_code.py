"""What ptxas makes of a kernel, for the tests of the machine code."""

import importlib.metadata
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

from tilesmith.jit import compiler, source
from tilesmith.plan import Kernel


@cache
def built(kernel: Kernel) -> tuple[bytes, str]:
    """The cubin for Hopper, and what ptxas says of it."""
    return compiler._compile(source.render(kernel), "sm_90a", "--ptxas-options=-v")


def complaints(log: str) -> list[str]:
    """What ptxas says beyond the resources that it was asked for."""
    expected = (
        r"ptxas info    : (\d+ bytes gmem.*|Compiling entry function .*|Function properties for .*|Used .*|Comp.*)"
        r"|ptxas  +\. +\d+ bytes stack frame, \d+ bytes spill stores, \d+ bytes spill loads"
    )
    return [line for line in log.splitlines() if line.strip() and not re.fullmatch(expected, line)]


def instructions(kernel: Kernel, folder: Path) -> Counter[str]:
    """How often each instruction is in the machine code."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(built(kernel)[0])
    nvdisasm = importlib.metadata.distribution("nvidia-cuda-nvdisasm").locate_file("nvidia/cu13/bin/nvdisasm")
    text = subprocess.run([str(nvdisasm), "-ndf", "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", text, re.MULTILINE)
    assert "EXIT" in found
    return Counter(found)


def total(found: Counter[str], pattern: str) -> int:
    return sum(n for name, n in found.items() if re.fullmatch(pattern, name))
