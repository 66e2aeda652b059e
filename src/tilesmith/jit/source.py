"""The translation unit of a kernel: its constants by name, then the source file of the package."""

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import torch

from tilesmith.plan import Constant, Kernel, Wgmma


def render(kernel: Kernel) -> str:
    """The text that NVRTC compiles. Equal kernels give equal text."""
    return "\n".join(
        [
            '#include "element.cuh"',
            "namespace plan {",
            *(_definition(name, value) for name, value in kernel.constants),
            "}  // namespace plan",
            *([_wgmma(kernel.wgmma)] if kernel.wgmma else []),
            f'#include "{kernel.source}"',
            "",
        ]
    )


@cache
def headers() -> dict[str, str]:
    """Every file under the package's cuda folder, by the name that `#include` uses."""
    found: dict[str, str] = {}

    def walk(folder: Traversable, prefix: str) -> None:
        for entry in sorted(folder.iterdir(), key=lambda e: e.name):
            if entry.is_dir():
                walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith((".cuh", ".cu")):
                found[prefix + entry.name] = entry.read_text()

    walk(resources.files("tilesmith") / "cuda", "")
    return found


def _definition(name: str, value: Constant) -> str:
    if isinstance(value, str):
        return f"using {name} = {value};"
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    return f"constexpr int {name} = {value};"


_PTX_TYPES = {torch.float16: "f16", torch.bfloat16: "bf16"}


def _wgmma(instruction: Wgmma) -> str:
    """The function around the one product instruction that a kernel uses: there are too many to keep them all."""
    count = instruction.n // 2  # accumulators of a thread
    dtype = _PTX_TYPES[instruction.dtype]
    sums = ", ".join(f"%{i}" for i in range(count))
    majors = f"{int(instruction.a_mn_major)}, {int(instruction.b_mn_major)}"
    outputs = ", ".join(f'"+f"(sum[{i}])' for i in range(count))
    return f"""namespace tilesmith::ptx {{
// sum += A B, or sum = A B, of the operands that two matrix descriptors describe.
__device__ __forceinline__ void wgmma(float (&sum)[{count}], unsigned long long a, unsigned long long b,
                                      bool accumulate) {{
  asm volatile(
      "{{\\n.reg .pred accumulate;\\nsetp.ne.b32 accumulate, %{count + 2}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{instruction.n}k16.f32.{dtype}.{dtype} "
      "{{{sums}}}, %{count}, %{count + 1}, accumulate, 1, 1, {majors};\\n}}"
      : {outputs}
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}}
}}  // namespace tilesmith::ptx"""
