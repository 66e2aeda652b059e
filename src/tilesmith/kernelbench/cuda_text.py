"""The CUDA part of a written module, which needs no other file: kernels, and the C++ that launches them.

general       float32 products of any sizes and strides, on any GPU from Turing on
elementwise   what may stand beside a product
planned       the product of one plan, on the GPU that it was made for
"""

from collections.abc import Iterable
from importlib import resources
from textwrap import wrap
from typing import Final

import torch

from tilesmith.core.device import Device
from tilesmith.core.params import BUFFERS, TensorMap
from tilesmith.core.plan import Kernel, KernelLaunch, Plan
from tilesmith.kernelbench.flatten import flattened, function, without_comments
from tilesmith.kernels import FAMILIES

_MAP_TYPES: Final = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.float32: "FLOAT32"}
_SWIZZLES: Final = {16: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_WIDTH: Final = 118  # of lines
_OLDEST: Final = "sm_75"  # architecture that is supported


def general_text(device: Device) -> str:
    """Defines `multiply_any`."""
    kernels = general_kernels(device)
    launches = _template("general.cu")
    for i, kernel in enumerate(kernels):
        launches = launches.replace(f"KERNEL_{i}", function(i, kernel))
    return flattened(kernels, "general") + launches


def general_kernels(device: Device) -> list[Kernel]:
    """One for each pair of directions in which operands may be read: along K or across it, A's first."""
    return next(family.general_kernels(device) for family in FAMILIES if family.general_kernels is not None)


def elementwise_text() -> str:
    """Defines `multiply_rows` and `keep_triangle`."""
    return _template("elementwise.cu")


def planned_text(plan: Plan) -> str:
    """Defines `multiply_planned`."""
    kernels = [launch.kernel for launch in plan.launches]
    tables = "".join(_table(i, launch) for i, launch in enumerate(plan.launches))
    launches = "".join(f"    {_launch(i, launch)},\n" for i, launch in enumerate(plan.launches))
    # Some versions of torch ask for a plain sm_90 too, which has none of these instructions.
    return f"""#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
{flattened(kernels, "planned")}{_template("planned.cu")}namespace planned {{
{tables}static const Launch launches[] = {{
{launches}}};
}}
const char* multiply_planned(const void* a, const void* b, void* out, void* workspace, void* stream) {{
  char* const buffers[] = {{(char*)a, (char*)b, (char*)out, (char*)workspace}};
  for (const planned::Launch& each : planned::launches)
    if (const char* error = planned::launch(each, buffers, static_cast<cudaStream_t>(stream)))
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
        texts.append((plan.device.arch, flattened([launch.kernel for launch in plan.launches], "planned")))
    return texts


def _template(name: str) -> str:
    return without_comments((resources.files("tilesmith.kernelbench") / "templates" / name).read_text())


def _table(index: int, launch: KernelLaunch) -> str:
    """The parameters of a launch, and where in them addresses and tensor maps go."""
    addresses = [f"{{{at}, {BUFFERS.index(x.buffer)}, {x.offset}}}" for at, x in launch.parameters.addresses()]
    maps = [f"    {_map(at, x)},\n" for at, x in launch.parameters.tensor_maps()]
    text = f"static const kernel_{index}::plan::Parameters parameters_{index} =\n"
    text += "".join(
        f"{line}\n" for line in wrap(f"{launch.parameters.initializer()};", _WIDTH, subsequent_indent="    ")
    )
    if addresses:
        text += f"static const Address addresses_{index}[] = {{{', '.join(addresses)}}};\n"
    if maps:
        text += f"static const Map maps_{index}[] = {{\n{''.join(maps)}}};\n"
    return text


def _launch(index: int, launch: KernelLaunch) -> str:
    kernel, parameters = launch.kernel, launch.parameters
    address_count, map_count = len(list(parameters.addresses())), len(list(parameters.tensor_maps()))
    fields = [
        f"(const void*){function(index, kernel)}",
        _braced(launch.grid),
        *(kernel.threads, kernel.shared_bytes, launch.cluster),
        str(launch.awaits_predecessor).lower(),
        *(f"&parameters_{index}", f"sizeof(parameters_{index})"),
        *((f"addresses_{index}" if address_count else "nullptr"), address_count),
        *((f"maps_{index}" if map_count else "nullptr"), map_count),
    ]
    return _braced(fields)


def _map(position: int, x: TensorMap) -> str:
    fields = [
        *(position, BUFFERS.index(x.buffer), x.offset),
        *(f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[x.dtype]}", len(x.sizes)),
        *(_braced(x.sizes), _braced(x.strides), _braced(x.box)),
        f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[x.line_bytes]}",
    ]
    return _braced(fields)


def _braced(values: Iterable[object]) -> str:
    return f"{{{', '.join(map(str, values))}}}"
