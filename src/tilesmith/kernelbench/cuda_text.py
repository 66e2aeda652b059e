"""The CUDA part of a written module, which needs no other file: kernels, and the C++ that launches them.

general       float32 products of any sizes and strides, on any GPU from Turing on
elementwise   what may stand beside a product
planned       the product of one plan, on the GPU that it was made for
"""

import itertools
from collections.abc import Iterable
from importlib import resources
from typing import Final

import torch

from tilesmith.device import Device
from tilesmith.jit.driver import BUFFERS
from tilesmith.kernelbench.flatten import flattened, function, without_comments
from tilesmith.kernels import simt
from tilesmith.plan import Kernel, Plan, Stage, TensorMap
from tilesmith.problem import Problem

_MAP_TYPES: Final = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.float32: "FLOAT32"}
_SWIZZLES: Final = {16: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_OLDEST: Final = "sm_75"  # architecture that is supported
_WIDEST_ROW: Final = 110  # characters of a row of bytes


def general_text(device: Device) -> str:
    """Defines `multiply_any`."""
    return flattened(general_kernels(device), "general") + _template("general.cu")


def general_kernels(device: Device) -> list[Kernel]:
    """One for each pair of directions in which operands may be read: along K or across it, A's first. All of them read
    single elements of a batch, with 64-bit strides, and can add to what the output has."""
    tile = next(tile for tile in simt.TILES[torch.float32.itemsize] if tile.wide_index)
    kernels = []
    for a_along_k, b_along_k in itertools.product((True, False), repeat=2):
        far = 2**31  # a stride that needs 64 bits
        a = torch.empty_strided((2, 3, 3), (far, far, 1) if a_along_k else (far, 1, far), device="meta")
        b = torch.empty_strided((2, 3, 3), (far, 1, far) if b_along_k else (far, far, 1), device="meta")
        out = torch.empty_strided((2, 3, 3), (9, 3, 1), device="meta")
        plan = simt.plan(Problem.of(a, b, out=out, accuracy="ieee"), device, tile, may_add=True)
        kernels.append(plan.stages[0].kernel)
    return kernels


def elementwise_text() -> str:
    """Defines `multiply_rows` and `keep_triangle`."""
    return _template("elementwise.cu")


def planned_text(plan: Plan) -> str:
    """Defines `multiply_planned`."""
    kernels = [stage.kernel for stage in plan.stages]
    tables = "".join(_table(i, stage) for i, stage in enumerate(plan.stages))
    stages = "".join(f"    {_stage(i, stage)},\n" for i, stage in enumerate(plan.stages))
    # Some versions of torch ask for a plain sm_90 too, which has none of these instructions.
    return f"""#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
{flattened(kernels, "planned")}{_template("planned.cu")}namespace planned {{
{tables}static const Stage stages[] = {{
{stages}}};
}}
const char* multiply_planned(const void* a, const void* b, void* out, void* workspace, void* stream) {{
  char* const buffers[] = {{(char*)a, (char*)b, (char*)out, (char*)workspace}};
  for (const planned::Stage& stage : planned::stages)
    if (const char* error = planned::launch(stage, buffers, static_cast<cudaStream_t>(stream)))
      return error;
  return nullptr;
}}
#endif
"""


def device_texts(plan: Plan | None, device: Device) -> list[tuple[str, str]]:
    """What of a module's text a compiler without a host part can take, each with an architecture to compile it for."""
    general = flattened(general_kernels(device), "general")
    texts = [(arch, general) for arch in dict.fromkeys((_OLDEST, device.arch))]
    if plan is not None:
        texts.append((plan.device.arch, flattened([stage.kernel for stage in plan.stages], "planned")))
    return texts


def _template(name: str) -> str:
    return without_comments((resources.files("tilesmith.kernelbench") / "templates" / name).read_text())


def _table(index: int, stage: Stage) -> str:
    """The arrays that a stage points to."""
    text = f"alignas(64) static const unsigned char arguments_{index}[] = {{\n{_rows(stage.arguments)}}};\n"
    if stage.addresses:
        each = ", ".join(f"{{{x.position}, {BUFFERS.index(x.buffer)}, {x.offset}}}" for x in stage.addresses)
        text += f"static const Address addresses_{index}[] = {{{each}}};\n"
    if stage.tensor_maps:
        maps = "".join(f"    {_map(x)},\n" for x in stage.tensor_maps)
        text += f"static const Map maps_{index}[] = {{\n{maps}}};\n"
    return text


def _stage(index: int, stage: Stage) -> str:
    fields = [
        f"(const void*){function(index, stage.kernel)}",
        _braced(stage.grid),
        *(stage.threads, stage.kernel.shared_bytes, stage.cluster),
        str(stage.awaits_predecessor).lower(),
        *(f"arguments_{index}", len(stage.arguments)),
        *((f"addresses_{index}" if stage.addresses else "nullptr"), len(stage.addresses)),
        *((f"maps_{index}" if stage.tensor_maps else "nullptr"), len(stage.tensor_maps)),
    ]
    return _braced(fields)


def _map(x: TensorMap) -> str:
    fields = [
        *(x.position, BUFFERS.index(x.buffer), x.offset),
        *(f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[x.dtype]}", len(x.sizes)),
        *(_braced(x.sizes), _braced(x.strides), _braced(x.box)),
        f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[x.line_bytes]}",
    ]
    return _braced(fields)


def _braced(values: Iterable[object]) -> str:
    return f"{{{', '.join(map(str, values))}}}"


def _rows(data: bytes) -> str:
    """Bytes as rows of numbers."""
    rows, row = [], ""
    for byte in data:
        if len(row) > _WIDEST_ROW:
            rows.append(row)
            row = ""
        row += f"{byte},"
    return "".join(f"{each}\n" for each in [*rows, row])
