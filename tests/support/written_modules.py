"""Written modules in tests: what runs on a GPU has a stand-in here, which does the same on the CPU's memory."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.nn import functional

from tilesmith.core.device import named
from tilesmith.core.problem import contiguous_strides
from tilesmith.kernelbench.problem_file import ProblemFile

H200: Final = named("h200")

ACTIVATIONS: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
    None: lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


class Memory:
    """The functions of the extension, on the CPU."""

    def __init__(self, plans: dict[Any, Any]) -> None:
        self.plans = plans
        self.planned_calls: list[tuple[int, ...]] = []

    @staticmethod
    def _at(address: int, sizes: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
        count = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        buffer = (ctypes.c_float * count).from_address(address)
        return torch.frombuffer(buffer, dtype=torch.float32).as_strided(sizes, strides)

    def any(self, a: int, b: int, out: int, sizes: list[int], stream: int) -> None:
        batches, m, n, k = sizes[:4]
        x, y = self._at(a, [batches, m, k], sizes[4:7]), self._at(b, [batches, k, n], sizes[7:10])
        self._at(out, [batches, m, n], sizes[10:]).copy_(x @ y)
        assert stream == 7

    def planned(self, plan: int, a: int, b: int, out: int, workspace: int, bias: int, stream: int) -> None:
        key, (_, shape, _) = next((key, found) for key, found in self.plans.items() if found[0] == plan)
        a_shape, a_strides, b_shape, b_strides, activation = key[:5]
        result = self._at(a, a_shape, a_strides) @ self._at(b, b_shape, b_strides)
        assert (bias != 0) == (len(key) > 5)
        if bias:
            result += self._at(bias, *key[5:])
        self._at(out, shape, contiguous_strides(shape)).copy_(ACTIVATIONS[activation](result))
        assert stream == 7
        self.planned_calls.append((plan, a, b, out, workspace, bias))

    def rows(self, x: int, y: int, rows: int, columns: int, factors: int, factor: float, stream: int) -> None:
        by = self._at(factors, [rows, 1], [1, 1]) if factors else factor
        self._at(y, [rows, columns], [columns, 1]).copy_(self._at(x, [rows, columns], [columns, 1]) * by)

    def triangle(self, x: int, all_rows: int, rows: int, columns: int, diagonal: int, upper: bool, stream: int) -> None:
        y = self._at(x, [all_rows // rows, rows, columns], [rows * columns, columns, 1])
        y.copy_(torch.triu(y, diagonal) if upper else torch.tril(y, diagonal))


def executed(text: str) -> dict[str, Any]:
    """The names of a module."""
    names: dict[str, Any] = {"__name__": "new"}
    before = set(names)
    exec(text, names)
    return {name: value for name, value in names.items() if name not in before | {"__builtins__"}}


def on_the_cpu(text: str, capability: tuple[int, int] = (8, 0)) -> tuple[dict[str, Any], Memory]:
    """The names of a module whose GPU is this CPU, and what its kernels were asked."""
    names: dict[str, Any] = {"__name__": "new"}
    exec(text, names)
    memory = Memory(names["_PLANS"])

    @contextmanager
    def device(_: torch.device) -> Iterator[None]:
        yield

    cuda = SimpleNamespace(
        device=device,
        current_stream=lambda: SimpleNamespace(cuda_stream=7),
        get_device_capability=lambda _: capability,
        get_device_properties=lambda _: SimpleNamespace(multi_processor_count=132),
    )

    class Torch:
        def __getattr__(self, name: str) -> Any:
            return cuda if name == "cuda" else getattr(torch, name)

    names |= {"_torch": Torch(), "_build": lambda _: memory, "_on_gpu": lambda x: x}
    return names, memory


def problem_model(problem: ProblemFile, *arguments: object) -> torch.nn.Module:
    names: dict[str, Any] = {}
    exec(problem.text, names)
    model = names["Model"](*arguments)
    assert isinstance(model, torch.nn.Module)
    return model
