"""The translation unit of a kernel: its enums, constants and parameters, then the files of the package: the parts that
the plan has picked, and the source file that is assembled from them."""

from functools import cache
from importlib.resources.abc import Traversable

import torch

from tilesmith.core import package
from tilesmith.core.params import LIBRARY_CONSTANTS
from tilesmith.core.plan import Kernel, Wgmma


def render(kernel: Kernel, emulated: bool = False) -> str:
    """The text that NVRTC compiles, or if it is `emulated` a C++ compiler. Equal kernels give equal text."""
    wgmma = _emulated_wgmma if emulated else _wgmma
    return "\n".join(
        [
            library_constants(),
            *(f'#include "{name}"' for name in ("element.cuh", *kernel.headers)),
            "namespace tilesmith {",
            *(enum.declaration() for enum in dict.fromkeys(kernel.constants.enums())),
            "}  // namespace tilesmith",
            "namespace plan {",
            *kernel.constants.definitions(),
            f"inline constexpr int threads = {kernel.threads};",
            f"inline constexpr int shared_bytes = {kernel.shared_bytes};",
            f"{kernel.parameters}}}  // namespace plan",
            *([wgmma(kernel.wgmma)] if kernel.wgmma else []),
            *(f'#include "{name}"' for name in (*kernel.parts, kernel.source)),
            "",
        ]
    )


@cache
def library_constants() -> str:
    """The constants that every kernel has."""
    values = "".join(f"inline constexpr int {name} = {value};\n" for name, value in LIBRARY_CONSTANTS.items())
    return f"namespace tilesmith {{\n{values}namespace ptx {{}}\n}}  // namespace tilesmith"


@cache
def headers() -> dict[str, str]:
    """Every CUDA file of the package by the name that `#include` uses: those of the device library relative to `cuda`,
    those of the kernels relative to the package."""
    found: dict[str, str] = {}

    def walk(folder: Traversable, prefix: str) -> None:
        for entry in sorted(folder.iterdir(), key=lambda e: e.name):
            if entry.is_dir():
                walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith((".cuh", ".cu")):
                found[prefix + entry.name] = entry.read_text()

    walk(package.files() / "cuda", "")
    walk(package.files() / "kernels", "kernels/")
    return found


_PTX_TYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "tf32"}


@cache
def _wgmma(instruction: Wgmma) -> str:
    """The function around the one product instruction that a kernel uses: there are too many to keep them all."""
    count = instruction.n // 2  # accumulators of a thread
    dtype = _PTX_TYPES[instruction.dtype]
    sums = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(sum[{i}])' for i in range(count))
    if instruction.a_in_registers:
        a_type, a_count, majors = "const unsigned (&a)[4]", 4, f"{int(instruction.b_mn_major)}"
        a_inputs = ", ".join(f'"r"(a[{i}])' for i in range(a_count))
        a_operand = "{" + ", ".join(f"%{count + i}" for i in range(a_count)) + "}"
    else:
        a_type, a_count, a_inputs, a_operand = "unsigned long long a", 1, '"l"(a)', f"%{count}"
        majors = f"{int(instruction.a_mn_major)}, {int(instruction.b_mn_major)}"
    depth = 16
    if instruction.dtype == torch.float32:
        assert not instruction.a_mn_major and not instruction.b_mn_major  # it takes them along K alone
        depth, majors = 8, ""
    directions = f", {majors}" if majors else ""
    b_operand = count + a_count
    return f"""namespace tilesmith::ptx {{
// sum += A B, or sum = A B, of operands that matrix descriptors describe; or an A in registers.
__device__ __forceinline__ void wgmma(float (&sum)[{count}], {a_type}, unsigned long long b, bool accumulate) {{
  asm volatile(
      "{{\\n.reg .pred accumulate;\\nsetp.ne.b32 accumulate, %{b_operand + 1}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{instruction.n}k{depth}.f32.{dtype}.{dtype} "
      "{{{sums}}}, {a_operand}, %{b_operand}, accumulate, 1, 1{directions};\\n}}"
      : {outputs}
      : {a_inputs}, "l"(b), "r"(static_cast<int>(accumulate)));
}}
}}  // namespace tilesmith::ptx"""


_EMULATED_FORMATS = {
    torch.float16: "emulator::Format::half",
    torch.bfloat16: "emulator::Format::bfloat16",
    torch.float32: "emulator::Format::tf32",
}


def _emulated_wgmma(instruction: Wgmma) -> str:
    """The function around the product instruction, as a call of the emulator's."""
    sums = f"float (&sum)[{instruction.n // 2}]"
    a_type, a = ("const unsigned (&a)[4]", "a, 0") if instruction.a_in_registers else ("unsigned long long a", "0, a")
    facts = (str(fact).lower() for fact in (instruction.a_mn_major, instruction.b_mn_major))
    shape = ", ".join([str(instruction.n), _EMULATED_FORMATS[instruction.dtype], *facts])
    return f"""namespace tilesmith::ptx {{
__device__ __forceinline__ void wgmma({sums}, {a_type}, unsigned long long b, bool accumulate) {{
  emulator::product(sum, {a}, b, accumulate, {{{shape}}});
}}
}}  // namespace tilesmith::ptx"""
