"""From operands to a launch: a product that was seen before costs one dictionary look-up."""

import struct
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

import torch

from tilesmith.core import device as devices
from tilesmith.core import rates
from tilesmith.core.accuracy import Accuracy, Numerics
from tilesmith.core.call_key import CallKey, call_key
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.packed import PackedPair
from tilesmith.core.plan import Kernel, Plan
from tilesmith.core.problem import Problem, contiguous_strides
from tilesmith.core.recent import Recent
from tilesmith.planner import choose, is_possible, packing
from tilesmith.runtime import driver, loading, registry, workspace
from tilesmith.runtime.graph_replay import GraphReplay
from tilesmith.runtime.launches import Launches

_TWO_FLOATS: Final = struct.Struct("<2f")
_EIGHT_BYTES: Final = struct.Struct("<q")
_NO_EPILOGUE: Final = Epilogue()
_TWO_ONES: Final[int] = _EIGHT_BYTES.unpack(_TWO_FLOATS.pack(1.0, 1.0))[0]

COMPILED_PLANS: Final = 4096  # kept ready, and up to twice as many; what is forgotten is planned anew, not compiled


@dataclass(frozen=True, slots=True)
class HostRates:
    """Table `host` of a GPU's rates."""

    max_short_clocks: float  # of a product that is worth a CUDA graph: a GPU that is busy for longer hides the host


def multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    numerics: Numerics,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    packed: PackedPair | None = None,
    epilogue: Epilogue | None = None,
) -> torch.Tensor:
    """The product of two CUDA tensors, launched on the current stream of their device."""
    if packed is None and epilogue is None:
        key = call_key(numerics, a, b, out_dtype, out)
    else:
        how, bias = _facts(numerics, packed, epilogue)
        key = call_key(how, a, b, out_dtype, out, bias)
    run = _young.get(key) or _compiled.get(key)
    if run is None:
        # One of them may be on the CPU, and it is the problem that says so.
        device = devices.installed(max(a.get_device(), b.get_device()))
        plan = planned(a, b, device, numerics, out_dtype, out, packed, epilogue)
        if plan is None:
            return multiply(a.float(), b.float(), numerics, out_dtype, out, packed, epilogue)
        run = compiled(plan, a.get_device())
        _compiled[key] = run
    return run(a, b, out) if packed is None and epilogue is None else run(a, b, out, packed, epilogue)


def _facts(
    numerics: Numerics, packed: PackedPair | None, epilogue: Epilogue | None
) -> tuple[Hashable, torch.Tensor | None]:
    """What a plan with these depends on besides the operands; and the bias, which is a tensor of the key."""
    which = None if packed is None else (packed[0] is not None, packed[1] is not None)
    if epilogue is None:
        return (numerics, which), None
    bias, activation, r, *_ = epilogue
    residual = None if r is None else (r.shape, r.stride(), r.dtype, r.data_ptr() & 15, r.get_device())
    return (numerics, which, activation, epilogue.is_scaled, residual), bias


def planned(
    a: torch.Tensor,
    b: torch.Tensor,
    device: devices.Device,
    numerics: Numerics,
    out_dtype: torch.dtype | None,
    out: torch.Tensor | None = None,
    packed: PackedPair | None = None,
    epilogue: Epilogue | None = None,
) -> Plan | None:
    """How operands like these are multiplied on a GPU. None if one is float32 and the other is not, and should become
    so first: no family takes them as they are."""
    problem = Problem.of(
        a,
        b,
        accuracy=numerics.accuracy,
        out_dtype=out_dtype,
        out=out,
        packed=(False, False) if packed is None else (packed[0] is not None, packed[1] is not None),
        may_mix=numerics.may_mix,
        epilogue=epilogue,
    )
    return choose(problem, device) if a.dtype == b.dtype or is_possible(problem, device) else None


def pack(tensor: torch.Tensor, accuracy: Accuracy, *, first: bool) -> torch.Tensor | None:
    """What products read instead of a CUDA tensor that is their first operand, or their second; None if they gain
    nothing from it."""
    k = tensor.shape[-1] if first or tensor.dim() == 1 else tensor.shape[-2]
    other = tensor.new_empty((k, 1) if first else (1, k))
    a, b = (tensor, other) if first else (other, tensor)
    problem = Problem.of(a, b, accuracy=accuracy, packed=(first, not first))
    plan = packing(problem, devices.installed(tensor.get_device()))
    return None if plan is None else compiled(plan, tensor.get_device())(a, b)


class CompiledPlan:
    """A plan whose kernels are loaded on one GPU. Call it with operands like those it was planned for."""

    __slots__ = (
        *("_device_index", "_graphs", "_idle", "_is_short", "_launches"),
        *("_out_dtype", "_out_shape", "_out_strides", "_replay", "_workspace_bytes"),
    )

    def __init__(self, plan: Plan, device_index: int, launches: Launches | None) -> None:
        problem = plan.problem
        self._device_index = device_index
        self._out_shape, self._out_dtype = problem.out_shape, problem.out.dtype
        self._out_strides = contiguous_strides(problem.out_shape)
        self._workspace_bytes = plan.workspace_bytes
        max_clocks = rates.section(plan.device, "host", HostRates).max_short_clocks
        self._is_short = plan.cycles < max_clocks and plan.workspace_bytes <= workspace.LENT_BYTES
        self._launches = launches  # None if there is nothing to compute
        self._idle = [] if launches is None else [launches]
        self._replay: GraphReplay[driver.LaunchGraph] = GraphReplay()
        self._graphs = self._replay.graphs

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None = None,
        packed: PackedPair | None = None,
        epilogue: Epilogue | None = None,
    ) -> torch.Tensor:
        added: tuple[int, ...] = ()
        if packed is not None or epilogue is not None:
            a_packed, b_packed = packed or (None, None)
            bias, _, residual, scale, residual_scale = epilogue or _NO_EPILOGUE
            added = (
                0 if a_packed is None else a_packed.data_ptr(),
                0 if b_packed is None else b_packed.data_ptr(),
                0 if bias is None else bias.data_ptr(),
                0 if residual is None else residual.data_ptr(),
                _TWO_ONES if scale == 1 == residual_scale else eight_bytes(scale, residual_scale),
            )
        return self._run(a.data_ptr(), b.data_ptr(), out, added)

    # Epilogues that are one addend and nothing else: a call of `addmm` is over in a few microseconds.
    def add_bias(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return self._run(a.data_ptr(), b.data_ptr(), None, (0, 0, bias.data_ptr(), 0, _TWO_ONES))

    def add_residual(self, a: torch.Tensor, b: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._run(a.data_ptr(), b.data_ptr(), None, (0, 0, 0, residual.data_ptr(), _TWO_ONES))

    def at(self, a: int, b: int, out: torch.Tensor, added: tuple[int, ...]) -> torch.Tensor:
        """The same for who has read the addresses: `added` are an epilogue's, with its factors, or nothing."""
        return self._run(a, b, out, added)

    def _run(self, a: int, b: int, out: torch.Tensor | None, added: tuple[int, ...]) -> torch.Tensor:
        """Launches with the addresses of the operands, and of what there is besides in driver.BUFFERS."""
        if torch._C._cuda_getDevice() != self._device_index:
            with torch.cuda.device(self._device_index):
                return self._run(a, b, out, added)
        if out is None:
            out = workspace.empty_strided(self._out_shape, self._out_strides, self._out_dtype)
        if self._launches is None:
            return out
        stream = torch._C._cuda_getCurrentRawStream(self._device_index)
        is_short = self._is_short and not torch._C._cuda_isCurrentStreamCapturing()
        if not self._workspace_bytes:
            scratch, buffers = None, (a, b, out.data_ptr(), 0, *added)
        else:
            if is_short:
                scratch = workspace.borrow(self._device_index, stream)
            else:
                scratch = workspace.allocate(self._workspace_bytes)
            buffers = (a, b, out.data_ptr(), scratch.data_ptr(), *added)
        if not is_short:
            self._launch(stream, buffers)
            return out
        graph = self._graphs.pop(buffers, None)
        if graph is None:
            self._launch(stream, buffers)
            self._replay.note(buffers, self._graph_of)
        else:
            graph(stream, self._device_index)
            self._graphs[buffers] = graph
        if scratch is not None:
            workspace.give_back(self._device_index, stream, scratch)
        return out

    def _launch(self, stream: int, buffers: tuple[int, ...]) -> None:
        # Launches have one memory for arguments. Taking them off the list, which is atomic, makes them ours.
        try:
            launches = self._idle.pop()
        except IndexError:
            launches = self._copied()
        launches(stream, self._device_index, buffers)
        self._idle.append(launches)

    def _graph_of(self, buffers: tuple[int, ...]) -> driver.LaunchGraph:
        return driver.LaunchGraph(self._copied(), self._device_index, buffers)

    def _copied(self) -> Launches:
        assert self._launches is not None
        return self._launches.copy()


def eight_bytes(*factors: float) -> int:
    """The two factors of an epilogue as the kernels read them."""
    return _EIGHT_BYTES.unpack(_TWO_FLOATS.pack(*factors))[0]  # type: ignore[no-any-return]


def compiled(plan: Plan, device_index: int) -> CompiledPlan:
    """The plan with its kernels compiled and loaded on the GPU with torch's index `device_index`."""
    if plan.problem.is_empty:
        return CompiledPlan(plan, device_index, None)
    functions = loading.loaded([launch.kernel for launch in plan.launches], plan.device.arch, device_index)
    return CompiledPlan(plan, device_index, Launches(functions, plan.launches))


_compiled: Final[Recent[CallKey, CompiledPlan]] = Recent(COMPILED_PLANS)
_young: Final = _compiled.young


def load(plans: Iterable[tuple[Plan, int]]) -> None:
    """Compiles and loads the kernels of plans, each with the index of its GPU, all at the same time."""
    kernels: dict[tuple[str, int], list[Kernel]] = {}
    for plan, device_index in plans:
        of_gpu = kernels.setdefault((plan.device.arch, device_index), [])
        if not plan.problem.is_empty:
            of_gpu += (launch.kernel for launch in plan.launches)
    for (arch, device_index), of_gpu in kernels.items():
        loading.loaded(of_gpu, arch, device_index)


class CudaExecutor:
    """This module, as the registry knows it."""

    def gpu_of(self, tensor: torch.Tensor) -> devices.Device:
        return devices.installed(tensor.get_device())

    def compiled(self, plan: Plan, device_index: int) -> CompiledPlan:
        return compiled(plan, device_index)

    multiply = staticmethod(multiply)


CUDA: Final = CudaExecutor()
registry.register("cuda", lambda: CUDA)
