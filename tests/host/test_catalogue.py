"""The kernels of a GPU are a finite set: every plan has its kernels from there, whatever its product is."""

import itertools
import random
from collections.abc import Iterator

import pytest
import torch

from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import KNOWN_GPUS, Device, named
from tilesmith.core.epilogue import ACTIVATIONS, Epilogue
from tilesmith.core.plan import Kernel, Plan
from tilesmith.core.problem import OUT_DTYPES, Problem
from tilesmith.kernels import FAMILIES
from tilesmith.planner import candidates, choose, is_possible, packing

H200 = named("h200")
PROBLEMS = 3000
MAX_KERNELS = {  # by entry
    **{
        "gemm": 2552,
        "gemm_fp32": 1570,
        "gemm_fp32_rs": 176,
        "split": 132,
        "split_k_reduce": 52,
        "realign": 1,
        "turn": 3,
    },
    **{"simt": 164, "mma": 684, "skinny": 40, "gemv": 55, "outer": 2},
}


def kernels_of(device: Device) -> frozenset[Kernel]:
    """Those of all families that have a catalogue."""
    catalogues = (family.kernels for family in FAMILIES if family.kernels is not None)
    return frozenset(itertools.chain.from_iterable(kernels(device) for kernels in catalogues))


def entries_of(device: Device) -> set[str]:
    """The kernels that a catalogue is complete for."""
    return {kernel.entry for kernel in kernels_of(device)}


class Draw:
    """Random products of every kind."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def problems(self, count: int) -> Iterator[Problem]:
        return (self.problem() for _ in range(count))

    def problem(self) -> Problem:
        rng = self._rng
        dtype = rng.choice([*OUT_DTYPES, torch.float32, torch.float32, torch.float32])
        batch = [rng.choice([1, 2, 3, 5]) for _ in range(rng.choice([0, 0, 0, 1, 2, 3, 4, 9]))]
        m, k, n = (self._size() for _ in "mkn")
        a = self._matrix([x if rng.random() < 0.8 else 1 for x in batch], m, k, dtype)
        b = self._matrix([x if rng.random() < 0.6 else 1 for x in batch], k, n, dtype)
        if not batch and rng.random() < 0.1:
            a = a[0] if m > 0 else a
        if not batch and rng.random() < 0.1:
            b = b[:, 0] if n > 0 else b
        accuracy: Accuracy = rng.choice(["fp32", "fp32", "ieee", "tf32"]) if dtype == torch.float32 else "fp32"
        shape = torch.matmul(a, b).shape if dtype.is_floating_point else None
        epilogue, out_dtype = None, None
        if shape is not None and len(shape) > 1 and rng.random() < 0.4:
            epilogue = self._epilogue(shape, dtype)
        elif rng.random() < 0.4:
            out_dtype = rng.choice(OUT_DTYPES[dtype])
        packed, is_mixed = (False, False), False
        if dtype == torch.float32 and accuracy != "ieee" and epilogue is None and out_dtype is None and k >= 33:
            is_mixed = (
                rng.random() < 0.15 and len(batch) < 4 and 0 not in (*a.stride(), *b.stride(), a.numel(), b.numel())
            )
            b = b.to(rng.choice([torch.float16, torch.bfloat16])) if is_mixed else b
            kinds = [(False, False), (True, False)] if is_mixed else [(False, False), (False, True), (True, True)]
            packed = rng.choice(kinds)
        out = None
        if shape is not None and len(shape) > 1 and rng.random() < 0.3:
            out = self._matrix(list(shape[:-2]), shape[-2], shape[-1], out_dtype or dtype, may_repeat=False)
        return Problem.of(
            a,
            b,
            accuracy=accuracy,
            out_dtype=out_dtype,
            out=out,
            epilogue=epilogue,
            packed=packed,
            may_mix=is_mixed,
            skips_zeros=rng.random() < 0.1,
        )

    def _size(self) -> int:
        rng = self._rng
        kind = rng.randrange(4)
        if kind == 0:
            return rng.choice([0, 1, 1, 2, 3, 8, 16, 17, 32, 33, 64, 65, 128, 4096])
        return int(2 ** rng.uniform(0, 14)) if kind == 1 else rng.choice([2, 8]) * int(2 ** rng.uniform(0, 11))

    def _matrix(
        self, batch: list[int], rows: int, columns: int, dtype: torch.dtype, *, may_repeat: bool = True
    ) -> torch.Tensor:
        """With rows or columns that are contiguous, apart, far apart, or all the same; from any element on."""
        rng = self._rng
        if rng.random() < 0.4:
            return (
                self._matrix(batch, columns, rows, dtype, may_repeat=may_repeat).mT
                if rng.random() < 0.9
                else (torch.empty(*batch, rows, columns, 2, dtype=dtype, device="meta")[..., 0])
            )
        if may_repeat and rng.random() < 0.05:
            return torch.empty(*batch, 1, columns, dtype=dtype, device="meta").expand(*batch, rows, columns)
        gap = rng.choice([0, 0, 0, 1, 2, 4, 8, 2**24 if rng.random() < 0.1 else 0])
        first = min(gap, rng.choice([0, 0, 0, 1, 2, 4]))
        padded = torch.empty(*batch, rows, columns + gap, dtype=dtype, device="meta")
        if len(batch) > 1 and rng.random() < 0.2:
            order = rng.sample(range(len(batch)), len(batch))
            padded = torch.empty(*(batch[i] for i in order), rows, columns + gap, dtype=dtype, device="meta")
            padded = padded.permute(*(order.index(i) for i in range(len(batch))), -2, -1)
        return padded[..., first : first + columns]

    def _epilogue(self, shape: tuple[int, ...], dtype: torch.dtype) -> Epilogue:
        rng = self._rng
        *batch, m, n = shape
        bias = torch.empty(n, dtype=dtype, device="meta") if rng.random() < 0.6 else None
        residual = self._matrix(batch, m, n, dtype) if rng.random() < 0.5 else None
        activation = rng.choice([None, *ACTIVATIONS])
        return Epilogue(bias=bias, activation=activation, residual=residual, scale=rng.choice([1.0, 0.5]))


def assert_is_of(catalogue: frozenset[Kernel], entries: set[str], plan: Plan) -> None:
    for launch in plan.launches:
        if launch.kernel.entry in entries:
            assert launch.kernel in catalogue, (plan.name, plan.problem, launch.kernel)
            assert launch.kernel.parameters == launch.parameters.declaration()


def test_every_plan_has_its_kernels_from_the_catalogue() -> None:
    catalogue, entries = kernels_of(H200), entries_of(H200)
    used: set[Kernel] = set()
    for problem in Draw(seed=20261118).problems(PROBLEMS):
        is_packed = problem.a.packed or problem.b.packed
        if not is_possible(problem, H200):  # one operand becomes float32 first
            continue
        for plan in filter(None, (choose(problem, H200), packing(problem, H200) if is_packed else None)):
            assert_is_of(catalogue, entries, plan)
            used |= {launch.kernel for launch in plan.launches}
    assert entries == {kernel.entry for kernel in used}


@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_every_candidate_has_too_on_every_gpu(gpu: str) -> None:
    device = KNOWN_GPUS[gpu]
    catalogue, entries = kernels_of(device), entries_of(device)
    for problem in Draw(seed=7).problems(60):
        for candidate in candidates(problem, device):
            assert_is_of(catalogue, entries, candidate.plan())


def test_there_are_no_more_kernels_than_can_be_built_ahead() -> None:
    kernels = kernels_of(H200)
    for entry, most in MAX_KERNELS.items():
        assert sum(kernel.entry == entry for kernel in kernels) <= most, entry
