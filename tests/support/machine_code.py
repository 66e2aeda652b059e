"""What ptxas makes of a kernel, for the tests of the machine code."""

import hashlib
import importlib.metadata
import os
import pickle
import re
import struct
import subprocess
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tilesmith import CompilationError
from tilesmith.core.device import Device, named
from tilesmith.core.plan import Kernel, KernelLaunch
from tilesmith.kernels.hopper.constants import CommonConstants
from tilesmith.runtime import compiler, source

# A folder of one run of the tests, in which its processes leave each other what takes long to make.
SHARED_FOLDER = "TILESMITH_TESTS_SHARED_FOLDER"


def _made_once(make: Callable[[Kernel], Any], kernel: Kernel) -> Any:
    """What is made of a kernel: by whichever process of the run needs it first."""
    text = source.render(kernel)
    folder = os.environ.get(SHARED_FOLDER)
    if folder is None:
        return make(kernel)
    path = Path(folder, f"{make.__name__}-{hashlib.sha256(text.encode()).hexdigest()}")
    if path.exists():
        return pickle.loads(path.read_bytes())
    made = make(kernel)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(pickle.dumps(made))
    os.replace(file.name, path)
    return made


@cache
def built(kernel: Kernel) -> tuple[bytes, str]:
    """The cubin for Hopper, and what ptxas says of it."""
    return _made_once(_build, kernel)  # type: ignore[no-any-return]


def _build(kernel: Kernel) -> tuple[bytes, str]:
    return compiler._compile(source.render(kernel), "sm_90a", "--ptxas-options=-v")


def complaints(log: str) -> list[str]:
    """What ptxas says beyond the resources that it was asked for."""
    expected = (
        r"ptxas info    : (\d+ bytes gmem.*|Compiling entry function .*|Function properties for .*|Used .*|Comp.*)"
        r"|ptxas  +\. +\d+ bytes stack frame, \d+ bytes spill stores, \d+ bytes spill loads"
    )
    return [line for line in log.splitlines() if line.strip() and not re.fullmatch(expected, line)]


def assert_nothing_spills(launch: KernelLaunch) -> None:
    """And ptxas has no complaints, and an SM of Hopper has the registers for as many blocks as the plan says."""
    _, log = built(launch.kernel)
    assert complaints(log) == []
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    used = re.search(r"Used (\d+) registers", log)
    assert used is not None
    c = launch.kernel.constants
    blocks_per_sm = getattr(c, "blocks_per_sm", 1)
    assert int(used[1]) * launch.kernel.threads * blocks_per_sm <= named("h200").registers_per_sm
    if isinstance(c, CommonConstants):
        # The producer gives registers back, the consumers take them.
        assert c.producer_registers <= int(used[1]) <= c.consumer_registers


def assert_does_not_compile_with(kernel: Kernel, name: str, difference: int) -> None:
    """A constant that contradicts the sources, or the other constants."""
    text = source.render(kernel)
    wrong = re.sub(rf"\b{name} = (\d+);", lambda found: f"{name} = {int(found[1]) + difference};", text)
    assert_does_not_compile(text, wrong)


def assert_does_not_compile(text: str, wrong: str, message: str = "static assertion failed") -> None:
    """What was made of a right text."""
    assert wrong != text
    with pytest.raises(CompilationError, match=message):
        compiler.compile(wrong, "sm_90a")


@cache
def disassembled(kernel: Kernel) -> str:
    """The machine code as text, with labels."""
    return _made_once(_disassemble, kernel)  # type: ignore[no-any-return]


def _disassemble(kernel: Kernel) -> str:
    return _nvdisasm(built(kernel)[0], "-c")


def _nvdisasm(content: bytes, *options: str) -> str:
    nvdisasm = importlib.metadata.distribution("nvidia-cuda-nvdisasm").locate_file("nvidia/cu13/bin/nvdisasm")
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        command = [str(nvdisasm), "-ndf", *options, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def instructions(kernel: Kernel) -> Counter[str]:
    """How often each instruction is in the machine code."""
    (found,) = instructions_of_each([kernel])
    return found


def instructions_in(text: str) -> Counter[str]:
    """How often each instruction is in machine code as text."""
    return Counter(each.name for each in _parsed(text) if isinstance(each, _Instruction))


def instructions_of_each(kernels: Sequence[Kernel]) -> list[Counter[str]]:
    """How often each instruction is in the machine code of each kernel. Most of nvdisasm's time is its start, which
    they share: it gets their codes as one."""
    codes = [_code(built(kernel)[0]) for kernel in kernels]
    ends = list(accumulate(map(len, codes)))
    found: list[Counter[str]] = [Counter() for _ in kernels]
    for each in _parsed(_nvdisasm(b"".join(codes), "--binary", "SM90a")):
        if isinstance(each, _Instruction):
            found[bisect_right(ends, each.address)][each.name] += 1
    assert all(each["EXIT"] > 0 for each in found)
    return found


def instructions_without_spills(kernel: Kernel, device: Device) -> Counter[str]:
    """How often each instruction is in the machine code for a GPU, whose SM has the registers for as many blocks as the
    plan says."""
    cubin, log = compiler._compile(source.render(kernel), device.arch, "--ptxas-options=-v")
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    used = re.search(r"Used (\d+) registers", log)
    assert used is not None
    blocks_per_sm = getattr(kernel.constants, "blocks_per_sm", 1)
    assert int(used[1]) * kernel.threads * blocks_per_sm <= device.registers_per_sm
    return instructions_in(_nvdisasm(cubin, "-c"))


def _code(cubin: bytes) -> bytes:
    """What a cubin, which is an ELF file, has in its sections of machine code."""
    (headers,) = struct.unpack_from("<Q", cubin, 40)
    size, count, of_names = struct.unpack_from("<3H", cubin, 58)
    sections = [struct.unpack_from("<2I4Q", cubin, headers + i * size) for i in range(count)]
    names_at = sections[of_names][4]
    return b"".join(
        cubin[offset : offset + length]
        for name, _, _, _, offset, length in sections
        if cubin.startswith(b".text.", names_at + name)
    )


def total(found: Counter[str], pattern: str) -> int:
    return sum(n for name, n in found.items() if re.fullmatch(pattern, name))


# Registers of products under way.


@dataclass(frozen=True)
class _Instruction:
    address: int
    text: str
    predicated: bool
    name: str
    operands: tuple[str, ...]

    @property
    def target(self) -> str | None:
        """The label that it names."""
        found = re.search(r"`\((\.\w+)\)", self.text)
        return found[1] if found else None


@dataclass(frozen=True)
class _Label:
    name: str


def _parsed(text: str) -> list[_Instruction | _Label]:
    found: list[_Instruction | _Label] = []
    for line in text.splitlines():
        if label := re.match(r"(\.\w+):", line):
            found.append(_Label(label[1]))
        elif code := re.match(r"\s+/\*([0-9a-f]+)\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;", line):
            address, predicate, name, operands = code.groups()
            words = tuple(word.strip() for word in operands.split(","))
            whole = f"{predicate or ''}{name} {operands}".strip()
            found.append(_Instruction(int(address, 16), whole, bool(predicate), name, words))
    return found


# Those whose first register, if they have one, is read. An instruction that is not here counts as one that writes.
_WRITE_NO_REGISTER = {
    *("BAR", "BRA", "BRX", "BRXU", "BSSY", "BSYNC", "CALL", "EXIT", "RET", "NANOSLEEP", "NOP", "WARPSYNC"),
    *("DSETP", "FCHK", "FSETP", "HSETP2", "ISETP", "PLOP3", "R2P"),
}
_DOUBLE = {"DADD", "DFMA", "DMUL", "DMMA"}


def _written(instruction: _Instruction) -> set[int]:
    """The registers that it writes itself; what products write comes later."""
    name, *kinds = instruction.name.split(".")
    if name in _WRITE_NO_REGISTER:
        return set()
    target = next((word for word in instruction.operands if not re.fullmatch(r"!?U?P(\d|T)", word)), "")
    register = re.fullmatch(r"R(\d+)", target)
    if register is None:
        return set()
    is_double = name in _DOUBLE or kinds[:1] == ["F64"] or (name == "CS2R" and "32" not in kinds)
    count = 4 if {"128", "4"} & set(kinds) else 2 if is_double or {"64", "WIDE", "2"} & set(kinds) else 1
    return set(range(int(register[1]), int(register[1]) + count))


_A_REGISTERS = 4  # of an A of 64 rows and 32 bytes of K, and 128 threads


def _read_by_product(instruction: _Instruction) -> set[int]:
    """The registers that a product reads until it is done: its sums, and its A if that is in registers."""
    shape = re.fullmatch(r"HGMMA\.64x(\d+)x(?:16\.F32(?:\.BF16)?|8\.F32\.TF32)", instruction.name)
    assert shape is not None, instruction.text
    sums, a = (re.fullmatch(r"R(\d+)", word) for word in instruction.operands[:2])
    assert sums is not None, instruction.text
    read = set(range(int(sums[1]), int(sums[1]) + int(shape[1]) // 2))
    if a is not None:
        read |= set(range(int(a[1]), int(a[1]) + _A_REGISTERS))
    else:
        assert "gdesc" in instruction.operands[1], instruction.text
    return read


def products_of_registers(text: str) -> int:
    """How many products have their A in registers."""
    products = (each for each in _parsed(text) if isinstance(each, _Instruction) and each.name.startswith("HGMMA"))
    return sum(bool(re.fullmatch(r"R\d+", each.operands[1])) for each in products)


@dataclass(frozen=True)
class _UnderWay:
    """The registers that products may still read: of those that have no group yet, and of groups, the latest first."""

    open: frozenset[int] = frozenset()
    groups: tuple[frozenset[int], ...] = (frozenset(),) * 3

    def after(self, instruction: _Instruction) -> "_UnderWay":
        if instruction.name.startswith("HGMMA"):
            products = self.open | _read_by_product(instruction)
            if instruction.operands[-1] != "gsb0":
                return _UnderWay(products, self.groups)
            latest, second, *older = self.groups
            return _UnderWay(frozenset(), (products, latest, second.union(*older)))
        if instruction.name.startswith("WARPGROUP.DEPBAR"):
            left = int(instruction.operands[-1], 16)
            return _UnderWay(self.open, tuple(g if i < left else frozenset() for i, g in enumerate(self.groups)))
        return self

    def __or__(self, other: "_UnderWay") -> "_UnderWay":
        return _UnderWay(self.open | other.open, tuple(a | b for a, b in zip(self.groups, other.groups, strict=True)))

    @property
    def registers(self) -> frozenset[int]:
        return self.open.union(*self.groups)


def overwritten_operands(text: str) -> list[str]:
    """Instructions that write registers which products under way may still read: whatever the path on which the
    instruction is reached, loops included. A product is under way until its group is waited for."""
    code: list[_Instruction] = []
    labels: dict[str, int] = {}
    for each in _parsed(text):
        if isinstance(each, _Label):
            labels[each.name] = len(code)
        else:
            code.append(each)

    def successors(i: int) -> list[int]:
        base = code[i].name.split(".")[0]
        assert base not in ("BRX", "BRXU", "JMP", "JMX"), f"cannot follow {code[i].text}"
        following = [i + 1] if i + 1 < len(code) else []
        if base == "BRA" or (base in ("CALL", "WARPSYNC") and code[i].target):
            assert code[i].target is not None, code[i].text
            ahead = [labels[str(code[i].target)]]
            return ahead if code[i].name == "BRA" and _is_unconditional(code[i]) else ahead + following
        if base in ("EXIT", "RET"):
            return following if code[i].predicated else []
        return following

    before: dict[int, _UnderWay] = {0: _UnderWay()}  # each instruction
    todo = [0]
    while todo:
        i = todo.pop()
        after = before[i].after(code[i])
        for j in successors(i):
            joined = after | before[j] if j in before else after
            if joined != before.get(j):
                before[j] = joined
                todo.append(j)
    return [
        each.text
        for i, each in enumerate(code)
        if i in before and not each.name.startswith("HGMMA") and _written(each) & before[i].registers
    ]


def _is_unconditional(branch: _Instruction) -> bool:
    return not branch.predicated and len(branch.operands) == 1
