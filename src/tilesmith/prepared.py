"""From operands to a launch: a product that was seen before costs one dictionary look-up."""

import struct
import threading
from typing import Final

import torch

from tilesmith import accuracy as accuracies
from tilesmith import device as devices
from tilesmith.epilogue import Epilogue
from tilesmith.errors import ColdCaptureError
from tilesmith.jit import cache, driver, memory, source
from tilesmith.jit.repeats import Repeats
from tilesmith.plan import Kernel, Plan
from tilesmith.planner import choose, is_possible, packing
from tilesmith.problem import Problem, contiguous_strides, is_mixed

_TWO_FLOATS: Final = struct.Struct("<2f")
_EIGHT_BYTES: Final = struct.Struct("<q")
_NO_EPILOGUE: Final = Epilogue()
_TWO_ONES: Final[int] = _EIGHT_BYTES.unpack(_TWO_FLOATS.pack(1.0, 1.0))[0]

PackedPair = tuple[torch.Tensor | None, torch.Tensor | None]  # what `pack` made of a and b

_MOST_PREPARED: Final = 8192  # shapes kept ready; past that all are planned anew, which compiles nothing
_SHORT_CYCLES: Final = 200_000.0  # a GPU that is busy for longer does not wait for the host


def multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    accuracy: str | None = None,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    packed: PackedPair | None = None,
    epilogue: Epilogue | None = None,
) -> torch.Tensor:
    """The product of two CUDA tensors, launched on the current stream of their device."""
    a_address, b_address = a.data_ptr(), b.data_ptr()
    dtype = a.dtype
    followed = accuracies.resolve(None) if accuracy is None and dtype is torch.float32 else accuracy
    key: tuple[object, ...] = (
        *(a.shape, a.stride(), dtype, a_address & 15, a.get_device()),
        *(b.shape, b.stride(), b.dtype, b_address & 15, b.get_device()),
        *(followed, out_dtype),
        None if out is None else (out.shape, out.stride(), out.dtype, out.data_ptr() & 15, out.get_device()),
    )
    if packed is not None:
        key = (*key, packed[0] is not None, packed[1] is not None)
    if epilogue is not None:
        key = (*key, kind_of(epilogue))
    prepared = _prepared.get(key)
    if prepared is None:
        if is_mixed(dtype, b.dtype) and accuracies.may_mix(accuracy):
            # Not under this key, which the call has too if it leaves the accuracy to torch: that one must raise.
            key = (*key, "mixed")
            prepared = _prepared.get(key)
        if prepared is None:
            # One of them may be on the CPU, and it is the problem that says so.
            device = devices.installed(max(a.get_device(), b.get_device()))
            plan = planned(a, b, device, accuracy, out_dtype, out, packed, epilogue)
            if plan is None:
                return multiply(a.float(), b.float(), accuracy, out_dtype, out, packed, epilogue)
            prepared = prepare(plan, a.get_device())
            if len(_prepared) >= _MOST_PREPARED:
                _prepared.clear()
            _prepared[key] = prepared
    return prepared(a, b, out) if packed is None and epilogue is None else prepared(a, b, out, packed, epilogue)


def kind_of(epilogue: Epilogue) -> tuple[object, ...]:
    """All of an epilogue that a plan depends on."""
    added = (
        None if x is None else (x.shape, x.stride(), x.dtype, x.data_ptr() & 15, x.get_device())
        for x in (epilogue.bias, epilogue.residual)
    )
    return (*added, epilogue.activation, epilogue.is_scaled)


def planned(
    a: torch.Tensor,
    b: torch.Tensor,
    device: devices.Device,
    accuracy: str | None,
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
        accuracy=accuracies.resolve(accuracy),
        out_dtype=out_dtype,
        out=out,
        packed=(False, False) if packed is None else (packed[0] is not None, packed[1] is not None),
        may_mix=accuracies.may_mix(accuracy),
        epilogue=epilogue,
    )
    return choose(problem, device) if a.dtype == b.dtype or is_possible(problem, device) else None


def pack(tensor: torch.Tensor, accuracy: accuracies.Accuracy, *, first: bool) -> torch.Tensor | None:
    """What products read instead of a CUDA tensor that is their first operand, or their second; None if they gain
    nothing from it."""
    k = tensor.shape[-1] if first or tensor.dim() == 1 else tensor.shape[-2]
    other = tensor.new_empty((k, 1) if first else (1, k))
    a, b = (tensor, other) if first else (other, tensor)
    problem = Problem.of(a, b, accuracy=accuracy, packed=(first, not first))
    plan = packing(problem, devices.installed(tensor.get_device()))
    return None if plan is None else prepare(plan, tensor.get_device())(a, b)


class Prepared:
    """A plan whose kernels are loaded on one GPU. Call it with operands like those it was planned for."""

    __slots__ = (
        "_device_index",
        "_functions",
        "_idle",
        "_is_short",
        "_out_layout",
        "_recorded",
        "_repeats",
        "_workspace_bytes",
        "plan",
    )

    def __init__(self, plan: Plan, device_index: int, functions: tuple[driver.Function, ...]) -> None:
        problem = plan.problem
        self.plan = plan
        self._functions = functions  # one for each stage; none if there is nothing to compute
        self._device_index = device_index
        self._out_layout = (problem.out_shape, contiguous_strides(problem.out_shape), problem.out.dtype)
        self._workspace_bytes = plan.workspace_bytes
        self._idle: list[tuple[driver.Launch, ...]] = []
        self._is_short = plan.cost.cycles < _SHORT_CYCLES and plan.workspace_bytes <= memory.LENT_BYTES
        self._repeats: Repeats[driver.Recording] = Repeats()
        self._recorded = self._repeats.recorded

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

    # The same for epilogues that are nothing else: a call of `addmm` is over in a few microseconds.
    def add_bias(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return self._run(a.data_ptr(), b.data_ptr(), None, (0, 0, bias.data_ptr(), 0, _TWO_ONES))

    def add_residual(self, a: torch.Tensor, b: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._run(a.data_ptr(), b.data_ptr(), None, (0, 0, 0, residual.data_ptr(), _TWO_ONES))

    def _run(self, a: int, b: int, out: torch.Tensor | None, added: tuple[int, ...]) -> torch.Tensor:
        """With the addresses of the operands, and of what there is besides in driver.BUFFERS."""
        if torch._C._cuda_getDevice() != self._device_index:
            with torch.cuda.device(self._device_index):
                return self._run(a, b, out, added)
        if out is None:
            out = memory.empty_strided(*self._out_layout)
        if not self._functions:
            return out
        stream = torch._C._cuda_getCurrentRawStream(self._device_index)
        is_short = self._is_short and not torch._C._cuda_isCurrentStreamCapturing()
        if not self._workspace_bytes:
            workspace, buffers = None, (a, b, out.data_ptr(), 0, *added)
        else:
            if is_short:
                workspace = memory.borrow(self._device_index, stream)
            else:
                workspace = memory.workspace(self._workspace_bytes)
            buffers = (a, b, out.data_ptr(), workspace.data_ptr(), *added)
        if not is_short:
            self._launch(stream, buffers)
            return out
        recording = self._recorded.pop(buffers, None)
        if recording is None:
            self._launch(stream, buffers)
            self._repeats.note(buffers, self._recording_of)
        else:
            recording(stream, self._device_index)
            self._recorded[buffers] = recording
        if workspace is not None:
            memory.give_back(self._device_index, stream, workspace)
        return out

    def _launch(self, stream: int, buffers: tuple[int, ...]) -> None:
        # A launch has one argument buffer. Taking it off the list, which is atomic, makes it ours.
        try:
            launches = self._idle.pop()
        except IndexError:
            launches = self._new_launches()
        for launch in launches:
            launch(stream, self._device_index, buffers)
        self._idle.append(launches)

    def _recording_of(self, buffers: tuple[int, ...]) -> driver.Recording:
        return driver.Recording(self._new_launches(), self._device_index, buffers)

    def _new_launches(self) -> tuple[driver.Launch, ...]:
        return tuple(map(driver.Launch, self._functions, self.plan.stages))


def eight_bytes(*factors: float) -> int:
    """Of the two factors of an epilogue."""
    return _EIGHT_BYTES.unpack(_TWO_FLOATS.pack(*factors))[0]  # type: ignore[no-any-return]


def prepare(plan: Plan, device_index: int) -> Prepared:
    """The plan with its kernels compiled and loaded on the GPU with torch's index `device_index`."""
    stages = () if plan.problem.is_empty else plan.stages
    functions = tuple(_loaded(stage.kernel, plan.device.arch, device_index) for stage in stages)
    return Prepared(plan, device_index, functions)


_prepared: dict[tuple[object, ...], Prepared] = {}
_functions: dict[tuple[Kernel, int], driver.Function] = {}
_loading = threading.Lock()


def _loaded(kernel: Kernel, arch: str, device_index: int) -> driver.Function:
    key = (kernel, device_index)
    function = _functions.get(key)
    if function is None:
        with _loading:
            function = _functions.get(key)
            if function is None:
                if torch.cuda.is_current_stream_capturing():
                    raise ColdCaptureError(
                        f"the kernel {kernel.entry} for this product is not loaded yet, and a CUDA graph is being "
                        "captured: loading would break the capture. Run the product once before the capture, or "
                        "call tilesmith.warmup([(a, b)]) with operands of the same shapes and strides."
                    )
                torch.cuda.init()
                cubin = cache.cubin(source.render(kernel), arch)
                function = driver.load(cubin, kernel.entry, kernel.shared_bytes, device_index)
                _functions[key] = function
    return function
