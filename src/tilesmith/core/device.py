"""A GPU as the planner sees it: a frozen value, read from the machine or known by name."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from tilesmith.core.errors import UnavailableError
from tilesmith.core.gpu_files import GpuFile, gpu_files

# Compute capability -> (NVRTC's architecture, float32 multiply-adds a clock and SM).
# Architectures that are not listed run the code of the newest listed one of their generation.
_ARCHITECTURES: Final[dict[tuple[int, int], tuple[str, int]]] = {
    (7, 5): ("sm_75", 64),
    (8, 0): ("sm_80", 64),
    (8, 6): ("sm_86", 128),
    (8, 9): ("sm_89", 128),
    (9, 0): ("sm_90a", 128),
    (10, 0): ("sm_100a", 128),
    (12, 0): ("sm_120a", 128),
}
ARCHITECTURES: Final[tuple[str, ...]] = tuple(arch for arch, _ in _ARCHITECTURES.values())
_ARCHITECTURE: Final = re.compile(r"(?:sm_?)?([0-9]{1,2})\.?([0-9])[af]?")  # "sm_90a", "sm_90", "9.0"


@dataclass(frozen=True, slots=True)
class Device:
    """The facts about a GPU that a plan depends on."""

    name: str
    capability: tuple[int, int]
    sm_count: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    l2_bytes: int

    @property
    def arch(self) -> str:
        """The architecture to compile for, as NVRTC spells it."""
        return self._architecture[0]

    @property
    def multiply_adds_per_clock(self) -> int:
        """Float32 multiply-adds that one SM finishes in a clock."""
        return self._architecture[1]

    @property
    def _architecture(self) -> tuple[str, int]:
        if self.capability in _ARCHITECTURES:
            return _ARCHITECTURES[self.capability]
        major, minor = self.capability
        family = [c for c in _ARCHITECTURES if c[0] == major and c[1] <= minor]
        if not family:
            raise UnavailableError(
                f"{self.name} has compute capability {major}.{minor}, which Tilesmith does not support; "
                f"it needs one of {', '.join(f'{a}.{b}' for a, b in _ARCHITECTURES)} or a later minor of these"
            )
        arch, rate = _ARCHITECTURES[max(family)]
        return arch.removesuffix("a"), rate  # an "a" target runs on its own minor alone


def _described(file: GpuFile) -> Device:
    """The GPU of a file. A block may have all of an SM's shared memory but the KiB that the system keeps."""
    facts = file.facts
    reserved_kib = 0 if file.capability == (7, 5) else 1
    return Device(
        name=facts.name,
        capability=file.capability,
        sm_count=facts.sm_count,
        shared_bytes_per_block=(facts.shared_kib_per_sm - reserved_kib) * 1024,
        shared_bytes_per_sm=facts.shared_kib_per_sm * 1024,
        registers_per_sm=65536,
        threads_per_sm=facts.threads_per_sm,
        l2_bytes=facts.l2_mib * 2**20,
    )


@cache
def _known() -> dict[str, Device]:
    return {file.key: _described(file) for file in gpu_files()}


class _KnownGpus(Mapping[str, Device]):
    """The GPUs that have a file, by their short names. The files are read when somebody asks."""

    def __getitem__(self, name: str) -> Device:
        return _known()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_known())

    def __len__(self) -> int:
        return len(_known())


KNOWN_GPUS: Final[Mapping[str, Device]] = _KnownGpus()
STAND_IN: Final = "h200"  # what is planned for where there is no GPU


def named(name: str) -> Device:
    """A GPU by its name, or by an architecture, so that a machine without one can ask what it would do.

    >>> named("NVIDIA H200").arch, named("sm_90").name, named("sm_86").name
    ('sm_90a', 'NVIDIA H200', 'NVIDIA A10')
    """
    key = re.sub(r"[\s_-]|nvidia|geforce|tesla", "", name.lower())
    if key in KNOWN_GPUS:
        return KNOWN_GPUS[key]
    asked_for = _ARCHITECTURE.fullmatch(name.strip().lower())
    found = None if asked_for is None else _of_capability((int(asked_for[1]), int(asked_for[2])))
    if found is None:
        raise ValueError(
            f"unknown GPU {name!r}; known are {', '.join(KNOWN_GPUS)}, and the architectures {', '.join(ARCHITECTURES)}"
        )
    return found


def _of_capability(capability: tuple[int, int]) -> Device | None:
    """The first known GPU of a compute capability. Of one that none has, a GPU with the sizes of the nearest older one;
    None if no kernel is for such a GPU."""
    major, minor = capability
    family = [gpu for gpu in KNOWN_GPUS.values() if gpu.capability[0] == major and gpu.capability[1] <= minor]
    if not family:
        return None
    nearest = max(family, key=lambda gpu: gpu.capability)  # the first of several
    if nearest.capability == capability:
        return nearest
    return replace(nearest, name=f"GPU of compute capability {major}.{minor}", capability=capability)


def here() -> Device | None:
    """The GPU that torch uses now; None if there is none."""
    import torch

    return installed(torch.cuda.current_device()) if torch.cuda.is_available() else None


@cache
def installed(index: int) -> Device:
    """The GPU with torch's device index `index` in this machine."""
    import torch  # here alone: what is known by name needs none

    p: Any = torch.cuda.get_device_properties(index)  # torch's stub lacks some of its attributes
    return Device(
        name=p.name,
        capability=(p.major, p.minor),
        sm_count=p.multi_processor_count,
        shared_bytes_per_block=p.shared_memory_per_block_optin,
        shared_bytes_per_sm=p.shared_memory_per_multiprocessor,
        registers_per_sm=p.regs_per_multiprocessor,
        threads_per_sm=p.max_threads_per_multi_processor,
        l2_bytes=p.L2_cache_size,
    )
