"""The candidate's process: builds it, calls it, and writes down what came out. It decides nothing.

Every function that is needed after the candidate was loaded is taken before, and the parent asks at the end whether
someone has replaced one.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Container
from typing import Any, Final

import torch
from torch import Tensor

from tilesmith.bench import precision
from tilesmith.kernelbench.check import analysis, exchange, loading, speed, watch, wire

_PATIENCE: Final = 1.0  # seconds for the threads that a call left behind
_SETTLING: Final = 0.03  # seconds in which a thread that Python does not know of would show
_ASLEEP: Final = 20_000_000  # clocks for which the GPU's stream waits before it has the inputs
_BLOCK: Final = 2**26  # bytes of freed memory to poison at once
_BLOCKS: Final = 8

_sleep, _clock = time.sleep, time.monotonic
_threads, _join = threading.enumerate, threading.Thread.join


class Worker:
    """A candidate's model, and the buffers that every call finds its inputs in."""

    def __init__(self) -> None:
        self._held: list[Any] = []
        self._sizes: list[int] = [4096]
        modules = (sys.modules[__name__], analysis, exchange, loading, precision, speed, watch, wire)
        self._untouched = watch.Untouched(*modules)

    def load(self, candidate: str, device: str, seed: int, init: str) -> wire.Message:
        """Runs the candidate's file, which may compile it, and makes its model."""
        self._device = device
        self._persisting_l2 = watch.persisting_l2() if device == "cuda" else 0
        self._arguments = torch.load(init, weights_only=True)
        module = loading.load(candidate, "candidate", ("ModelNew",))
        self._model = loading.build(module.ModelNew, self._arguments, seed, device)
        return {}

    def run(self, inputs: str, outputs: str) -> wire.Message:
        """One call on the inputs of a file. What came out, at once and a little later, by which keys, and the inputs as
        they are after it go to another file; "types" has the names of what came out and is no plain tensor."""
        given = exchange.load(inputs)
        self._poison()
        threads_before = _threads()
        with torch.no_grad():
            returned = self._model(*self._filled(given))
            results = loading.leaves(returned)
            types = [f"{type(x).__module__}.{type(x).__name__}" for x in results if type(x) is not Tensor]
            if types:
                return {"types": types}
            at_once = [x.clone() for x in results]  # on the stream of the caller, which need not wait for others
            self._settle(threads_before)
            # Kept until the next call, for the reference's process to copy.
            self._said = {"at once": at_once, "settled": [x.clone() for x in results], "inputs": self._held}
            exchange.save(self._said | {"keys": loading.keys(returned)}, outputs)
            self._spoil(results)
        return {"types": []}

    def trace(self, inputs: str) -> wire.Message:
        """The operations and kernels of one call on fresh values, and of another on the same."""
        given = exchange.load(inputs)
        answer: wire.Message = {}
        for name in ("fresh", "again"):
            operations, kernels = self._traced(self._filled(given))
            answer |= {f"{name} operations": operations, f"{name} kernels": kernels}
        return answer

    def _traced(self, values: list[Any]) -> tuple[list[str], list[str]]:
        operations: list[str] = []

        def call() -> None:
            with torch.no_grad():
                operations.extend(watch.operations(lambda: self._model(*values)))

        if self._device == "cuda":
            return operations, watch.kernels(call)
        call()
        return operations, []

    def state(self) -> wire.Message:
        """What the candidate has changed in this process."""
        more = watch.persisting_l2() - self._persisting_l2 if self._device == "cuda" else 0
        return {"changed": self._untouched.changed(), "persisting_l2": more}

    def time(self, problem: str, seed: int, inputs: str, classes: list[str], official: bool) -> wire.Message:
        """Times beside torch's: milliseconds of each round by competitor. The problem is loaded only now."""
        module = loading.load(problem, "problem", ("Model",))
        self._timed = given = exchange.load(inputs)
        models = {"candidate": self._model}
        models |= {name: loading.build(module.Model, self._arguments, seed, self._device) for name in classes}
        return {"samples": speed.measure(models, given, official=official), "changed": self._untouched.changed()}

    def pace(self, calls: int) -> wire.Message:
        """Some calls in a row on the inputs that were timed, for the parent's own clock."""
        with torch.no_grad():
            for _ in range(calls):
                self._model(*self._timed)
        torch.cuda.synchronize()
        return {}

    def _filled(self, arguments: list[Any]) -> list[Any]:
        """The values in tensors that have been there before, so that neither an address nor an id tells them apart.
        On a GPU they arrive late: a kernel on a stream that did not wait for them finds NaN."""
        given = loading.leaves(arguments)
        if [_form(x) for x in given] != [_form(x) for x in self._held]:
            self._held = loading.twins(given)
        if self._device == "cuda":
            for x in self._held:
                if loading.has_nan(x):
                    loading.storage_of(x).fill_(float("nan"))
            torch.cuda.synchronize()
            torch.cuda._sleep(_ASLEEP)
        for held, x in zip(self._held, given, strict=True):
            if isinstance(x, Tensor):
                loading.storage_of(held).copy_(loading.storage_of(x))
        found: list[Any] = loading.with_leaves(arguments, self._held)
        return found

    def _settle(self, threads_before: Container[threading.Thread]) -> None:
        """Waits for what the call may have left behind."""
        end = _clock() + _PATIENCE
        for thread in _threads():
            if thread not in threads_before:
                with contextlib.suppress(AssertionError, RuntimeError):  # one that Python did not start
                    _join(thread, max(0.0, end - _clock()))
        if self._device == "cuda":
            torch.cuda.synchronize()
        else:
            _sleep(_SETTLING)

    def _poison(self) -> None:
        """NaN into the memory that the next allocations get, and into shared memory."""
        nan = float("nan")
        sizes = [*self._sizes * 2, *([_BLOCK // 4] * _BLOCKS if self._device == "cuda" else [])]
        blocks = [torch.full((size,), nan, device=self._device) for size in sizes]
        if self._device == "cuda":
            square = torch.full((2048, 2048), nan, device="cuda")
            blocks += [square @ square, square.half() @ square.half(), square.softmax(-1)]
            torch.cuda.synchronize()
        del blocks

    def _spoil(self, results: list[Tensor]) -> None:
        """Overwrites results that have been copied: one that was kept for later is no longer right."""
        kept = {x.untyped_storage().data_ptr() for x in self._own_tensors()}
        self._sizes = [max(1, x.nbytes // 4) for x in results]
        for x in results:
            if loading.has_nan(x) and x.untyped_storage().data_ptr() not in kept:
                with contextlib.suppress(RuntimeError):  # an expanded tensor cannot be written
                    x.fill_(float("nan"))

    def _own_tensors(self) -> list[Tensor]:
        if not isinstance(self._model, torch.nn.Module):
            return []
        return [*self._model.parameters(), *self._model.buffers()]


def _form(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return x.shape, x.stride(), x.dtype, x.storage_offset(), x.untyped_storage().nbytes()


def main() -> None:
    worker = Worker()
    handlers = ("load", "run", "trace", "state", "time", "pace")
    wire.serve({name: getattr(worker, name) for name in handlers})


if __name__ == "__main__":
    main()
