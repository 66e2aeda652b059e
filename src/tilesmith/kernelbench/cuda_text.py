"""The CUDA part of a written module: kernels, and the C++ that launches them. It includes files of the package, which
the module has as well: `files_of`.

general             float32 products of any sizes and strides, on any GPU from Turing on
factors, triangle   what may stand beside a product
chains              operations that one kernel does together
planned             the products of plans, on the GPU that they were made for
"""

from collections.abc import Collection, Iterable, Sequence
from textwrap import wrap
from typing import Final

from tilesmith.core.device import Device
from tilesmith.core.params import Buffer, TensorMap
from tilesmith.core.plan import Kernel, KernelLaunch, Plan
from tilesmith.kernelbench.chain_spec import MAX_NUMBERS, MAX_OPERANDS, ChainSpec
from tilesmith.kernelbench.flatten import flattened, function, including, without_comments
from tilesmith.kernelbench.templates import template
from tilesmith.kernels import FAMILIES

_PASSED: Final[tuple[Buffer, ...]] = ("a", "b", "out", "workspace", "bias")  # to each plan: see product.cpp
_SWIZZLES: Final = {16: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_WIDTH: Final = 118  # of lines
_OLDEST: Final = "sm_75"  # architecture that is supported


def general_text(device: Device) -> str:
    """Defines `multiply_any`."""
    kernels = general_kernels(device)
    launches = without_comments(template("general.cu"))
    for i, kernel in enumerate(kernels):
        launches = launches.replace(f"KERNEL_{i}", function(i, kernel))
    return including(kernels, "general") + launches


def general_kernels(device: Device) -> list[Kernel]:
    """One for each pair of directions in which operands may be read: along K or across it, A's first."""
    return next(family.general_kernels(device) for family in FAMILIES if family.general_kernels is not None)


def factors_text() -> str:
    """Defines `multiply_rows`."""
    return without_comments(template("factors.cu"))


def triangle_text() -> str:
    """Defines `keep_triangle`."""
    return without_comments(template("triangle.cu"))


def chains_text(chains: Sequence[ChainSpec]) -> str:
    """Defines `run_chain`, which takes the number of one of these."""
    texts = _chain_texts(chains)
    launches = ", ".join(f"chains::launch<{_chain_class(texts.index(chain.text))}>" for chain in chains)
    return chain_kernels(chains) + without_comments(template("chain_launches.cu")).replace("LAUNCHES", launches)


def chain_kernels(chains: Sequence[ChainSpec]) -> str:
    """The kernels of chains, as templates. Those of the same text are one."""
    kernels = [
        f"namespace chain_{i} {{\nusing namespace chains;\n{text}}}\n" for i, text in enumerate(_chain_texts(chains))
    ]
    common = without_comments(template("chain_kernels.cu"))
    for name, number in (("MAX_OPERANDS", MAX_OPERANDS), ("MAX_NUMBERS", MAX_NUMBERS)):
        common = common.replace(name, str(number))
    return "".join([common, *kernels])


def _chain_texts(chains: Sequence[ChainSpec]) -> list[str]:
    return list(dict.fromkeys(chain.text for chain in chains))


def _chain_class(number: int) -> str:
    return f"chain_{number}::Chain"


def planned_text(plans: Collection[Plan]) -> str:
    """Defines `multiply_planned`, which takes the number of one of these plans; "" if there are none."""
    numbers = launch_numbers(plans)
    if not numbers:
        return ""
    kernels = planned_kernels(plans)
    tables = "".join(_tables(number, launches, kernels) for launches, number in numbers.items())
    rows = "".join(f"    {{launches_{number}, {len(launches)}}},\n" for launches, number in numbers.items())
    # Some versions of torch ask for a plain sm_90 too, which has none of these instructions.
    return f"""#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
{including(kernels, "planned")}{without_comments(template("planned.cu"))}namespace planned {{
{tables}static const Plan plans[] = {{
{rows}}};
static_assert(buffer_count == {len(_PASSED)});
}}
const char* multiply_planned(int plan, int device, void* const* buffers, void* stream) {{
  thread_local planned::Known known[{len(numbers)}];
  return planned::launch_all(planned::plans[plan], known[plan], device, buffers, static_cast<cudaStream_t>(stream));
}}
#endif
"""


def launch_numbers(plans: Iterable[Plan]) -> dict[tuple[KernelLaunch, ...], int]:
    """The number of each distinct sequence of launches, as `multiply_planned` takes it: plans may have the same."""
    return {launches: i for i, launches in enumerate(dict.fromkeys(plan.launches for plan in plans))}


def planned_kernels(plans: Iterable[Plan]) -> list[Kernel]:
    """The distinct kernels of plans."""
    return list(dict.fromkeys(launch.kernel for plan in plans for launch in plan.launches))


def device_texts(
    plans: Collection[Plan], chains: Sequence[ChainSpec], device: Device, *, multiplies: bool
) -> list[tuple[str, str]]:
    """What of a module's text a compiler without a host part can take, each with an architecture to compile it for."""
    portable = [flattened(general_kernels(device), "general")] if multiplies else []
    if chains:
        portable.append(chain_kernels(chains) + _chain_instances(chains))
    texts = [(arch, text) for text in portable for arch in dict.fromkeys((_OLDEST, device.arch))]
    if plans:
        texts.append((device.arch, flattened(planned_kernels(plans), "planned")))
    return texts


def _chain_instances(chains: Sequence[ChainSpec]) -> str:
    """Uses of kernels of chains, without which nothing is compiled of them."""
    text = ""
    for i, chain in enumerate({chain.text: chain for chain in chains}.values()):
        has_segments = chain.reduced_dims > 0 or chain.groups > 0
        for width in (4, 1):
            given = f"{_chain_class(i)}, {width}"
            kernel = (
                f"over_segments<{given}, chains::Block<chains::threads>>" if has_segments else f"over_elements<{given}>"
            )
            text += f"template __global__ void chains::{kernel}(const __grid_constant__ chains::Arguments);\n"
    return text


def _tables(number: int, launches: Sequence[KernelLaunch], kernels: Sequence[Kernel]) -> str:
    """All that the launches of a plan are told. `kernels`: of all plans, in the order of their names."""
    text = rows = ""
    for i, launch in enumerate(launches):
        name, kernel = f"{number}_{i}", kernels.index(launch.kernel)
        text += _parameters(name, kernel, launch)
        rows += f"    {_launch(name, kernel, launch)},\n"
    return f"{text}static const Launch launches_{number}[] = {{\n{rows}}};\n"


def _parameters(name: str, kernel: int, launch: KernelLaunch) -> str:
    """The parameters of a launch, and where in them addresses and tensor maps go."""
    addresses = [f"{{{at}, {_PASSED.index(x.buffer)}, {x.offset}}}" for at, x in launch.parameters.addresses()]
    maps = [f"    {_map(at, x)},\n" for at, x in launch.parameters.tensor_maps()]
    text = f"static const kernel_{kernel}::plan::Parameters parameters_{name} =\n"
    text += "".join(
        f"{line}\n" for line in wrap(f"{launch.parameters.initializer()};", _WIDTH, subsequent_indent="    ")
    )
    if addresses:
        text += f"static const Address addresses_{name}[] = {{{', '.join(addresses)}}};\n"
    if maps:
        text += f"static const Map maps_{name}[] = {{\n{''.join(maps)}}};\n"
    return text


def _launch(name: str, kernel: int, launch: KernelLaunch) -> str:
    address_count, map_count = len(list(launch.parameters.addresses())), len(list(launch.parameters.tensor_maps()))
    fields = [
        f"(const void*){function(kernel, launch.kernel)}",
        _braced(launch.grid),
        *(launch.kernel.threads, launch.kernel.shared_bytes, launch.cluster),
        str(launch.awaits_predecessor).lower(),
        *(f"&parameters_{name}", f"sizeof(parameters_{name})"),
        *((f"addresses_{name}" if address_count else "nullptr"), address_count),
        *((f"maps_{name}" if map_count else "nullptr"), map_count),
    ]
    return _braced(fields)


def _map(position: int, x: TensorMap) -> str:
    dtype = "TFLOAT32" if x.rounds_to_tf32 else str(x.dtype).removeprefix("torch.").upper()
    fields = [
        *(position, _PASSED.index(x.buffer), x.offset),
        *(f"CU_TENSOR_MAP_DATA_TYPE_{dtype}", len(x.sizes)),
        *(_braced(x.sizes), _braced(x.strides), _braced(x.box)),
        f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[x.line_bytes]}",
    ]
    return _braced(fields)


def _braced(values: Iterable[object]) -> str:
    return f"{{{', '.join(map(str, values))}}}"
