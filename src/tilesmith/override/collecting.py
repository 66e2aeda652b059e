"""What an override would multiply: the plans, while torch multiplies."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Never

import torch

from tilesmith.core.accuracy import numerics
from tilesmith.core.device import Device
from tilesmith.core.plan import Plan
from tilesmith.override.registration import scope, settings_in_force
from tilesmith.override.settings import Settings
from tilesmith.runtime import registry
from tilesmith.runtime.registry import DeferredError, Executor

Planned = tuple[Plan, int]  # a plan, and the index of its GPU


class _Collector:
    """An executor that multiplies nothing: it notes what it should."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.plans: list[Planned] = []

    def gpu_of(self, tensor: torch.Tensor) -> Device:
        return self._executor.gpu_of(tensor)

    def compiled(self, plan: Plan, device_index: int) -> Never:
        self.plans.append((plan, device_index))
        raise DeferredError

    def multiply(self, *_: object) -> Never:
        raise DeferredError


@contextmanager
def collecting(accuracy: str | None = None, device_type: str = "cuda") -> Iterator[list[Planned]]:
    """Inside of it, torch multiplies, and the plans are noted that the override in force would have run; where none is,
    those of an override with this accuracy. Like an override, it holds for all threads."""
    executor = registry.executor_on(device_type)
    assert executor is not None
    settings = replace(settings_in_force(device_type) or Settings())
    if accuracy is not None:
        settings = replace(settings, numerics=numerics(accuracy))
    collector = _Collector(executor)
    before = registry.register(device_type, lambda: collector)
    try:
        with scope(device_type, settings):
            try:
                yield collector.plans
            finally:
                registry.register(device_type, before)  # before the outer scope asks who multiplies
    finally:
        registry.register(device_type, before)
