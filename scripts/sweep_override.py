"""Torch's products with `tilesmith.override` and without, over 200 shapes, by the wall clock.

    PYTHONPATH=src python3 scripts/sweep_override.py [--json PATH]

A call of torch's that takes more than 50 us should not take 5% longer under the override, and a shorter one not 15%.
Half of the shapes are of any size from 1 on, half of 128 on; operators, types and the layouts that autograd makes take
turns. A sample is a loop of calls with one synchronisation at its end, on operands that stay the same: short calls take
what the host needs for one. The two sides take turns, and medians are compared. What is too slow is measured again with
three times as many samples, and then counts as measured.

Ends with status 1 if a product is wrong; not if one is slow. `--small` is for machines without a GPU: tiny products by
the emulated kernels, whose times mean nothing.
"""

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, pairwise, product
from pathlib import Path
from typing import Final

import torch

import tilesmith
from tilesmith.bench.timing import float32_precision
from tilesmith.device import installed
from tilesmith.jit import cache, source
from tilesmith.planner import choose
from tilesmith.problem import Problem

FORMS: Final = (("mm", "none"), ("addmm", "row"), ("addmm", "matrix"), ("bmm", "none"), ("baddbmm", "matrix"))
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
LAYOUTS: Final = ("nn", "nt", "tn")  # a product; a linear layer's; its weight's gradient

MOST_FLOPS: Final = 2**38
MOST_BYTES: Final = 2**30
SAMPLE_SECONDS: Final = 3e-3
MOST_CALLS: Final = 2000
QUEUED_CALLS: Final = 20  # fewer launches than a stream's queue takes without making the host wait

LONG_US: Final = 50.0
LEAST_RATIO_LONG: Final = 1 / 1.05
LEAST_RATIO_SHORT: Final = 1 / 1.15

Call = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    operator: str
    addend: str
    batch: int  # 1 for those that have none
    m: int
    k: int
    n: int
    dtype: torch.dtype
    layout: str

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.k * self.n

    @property
    def bytes(self) -> int:
        elements = self.m * self.k + self.k * self.n + 2 * self.m * self.n
        return self.batch * elements * self.dtype.itemsize

    def operands(self, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        batch = (self.batch,) if "bmm" in self.operator else ()
        of = partial(torch.randn, dtype=self.dtype, device=device)
        a = of(*batch, self.k, self.m).mT if self.layout[0] == "t" else of(*batch, self.m, self.k)
        b = of(*batch, self.n, self.k).mT if self.layout[1] == "t" else of(*batch, self.k, self.n)
        return a, b

    def call(self, device: str) -> Call:
        a, b = self.operands(device)
        function = getattr(torch, self.operator)
        if self.addend == "none":
            return partial(function, a, b)
        shape = (self.n,) if self.addend == "row" else (*a.shape[:-1], self.n)
        return partial(function, torch.randn(shape, dtype=self.dtype, device=device), a, b)

    def __str__(self) -> str:
        batch = f"{self.batch} x " if "bmm" in self.operator else ""
        added = "" if self.addend == "none" else f" + {self.addend}"
        return f"{self.operator}{added} {batch}{self.m}x{self.k}x{self.n} {self.layout} {short(self.dtype)}"


@dataclass(frozen=True, slots=True)
class Found:
    case: Case
    torch_us: float
    ours_us: float
    torch_host_us: float  # to issue a call, without waiting for it
    ours_host_us: float
    where: str
    why: str
    difference: float  # of the two products, relative to the size that random ones have

    @property
    def ratio(self) -> float:
        return self.torch_us / self.ours_us

    @property
    def is_long(self) -> bool:
        return self.torch_us > LONG_US

    @property
    def is_slow(self) -> bool:
        return self.ratio < (LEAST_RATIO_LONG if self.is_long else LEAST_RATIO_SHORT)

    @property
    def is_wrong(self) -> bool:
        return not self.difference < (1e-5 if self.case.dtype == torch.float32 else 1e-2)


def cases(count: int, largest: int = 8192, seed: int = 0) -> Iterator[Case]:
    """The same ones each time."""
    chosen = random.Random(seed)
    kinds = list(product(FORMS, DTYPES, LAYOUTS))
    chosen.shuffle(kinds)
    every_other_floor = cycle((1, min(128, largest)))
    for _, ((operator, addend), dtype, layout), floor in zip(
        range(count), cycle(kinds), every_other_floor, strict=False
    ):
        while True:
            batch = size(chosen, 1, min(128, largest)) if "bmm" in operator else 1
            m, k, n = (size(chosen, floor, largest) for _ in "mkn")
            case = Case(operator, addend, batch, m, k, n, dtype, layout)
            if case.flops <= MOST_FLOPS and case.bytes <= MOST_BYTES:
                break
        yield case


def size(chosen: random.Random, least: int, most: int) -> int:
    """Each power of two is as likely as the next; every other size is a multiple of 8, if it is not below."""
    drawn = round(2 ** chosen.uniform(math.log2(least), math.log2(most)))
    return drawn - drawn % 8 if chosen.random() < 0.5 and drawn >= 8 else drawn


def compile_kernels(swept: list[Case]) -> int:
    """All at once, on all cores: a first call would compile its own ones alone."""
    plans = (choose(Problem.of(*case.operands("meta")), installed(0)) for case in swept)
    kernels = {stage.kernel for plan in plans for stage in plan.stages}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda kernel: cache.cubin(source.render(kernel), installed(0).arch), kernels))
    return len(kernels)


def measured(case: Case, device: str, rounds: int) -> Found:
    call = case.call(device)
    product_of_torch = call()
    switch_to("ours")
    product_of_ours = call()
    (stat,) = tilesmith.stats().entries
    difference = (product_of_ours.double() - product_of_torch.double()).norm()
    difference /= math.sqrt(case.k * product_of_torch.numel())
    del product_of_ours, product_of_torch

    rough = microseconds(call, 5, waits=True)
    calls = min(MOST_CALLS, max(1, round(SAMPLE_SECONDS * 1e6 / rough)))
    samples: dict[tuple[str, bool], list[float]] = {}
    for round_ in range(rounds):
        for side in ("torch", "ours") if round_ % 2 == 0 else ("ours", "torch"):
            switch_to(side)
            call()
            for waits, how_many in ((True, calls), (False, min(calls, QUEUED_CALLS))):
                samples.setdefault((side, waits), []).append(microseconds(call, how_many, waits))
    switch_to("torch")
    medians = {kind: statistics.median(values) for kind, values in samples.items()}
    return Found(
        case,
        medians["torch", True],
        medians["ours", True],
        medians["torch", False],
        medians["ours", False],
        stat.where,
        stat.reason,
        difference.item(),
    )


def switch_to(side: str) -> None:
    if side == "ours":
        tilesmith.enable()
    else:
        tilesmith.disable()


def microseconds(call: Call, calls: int, waits: bool) -> float:
    """Of one call: until it is done, or until it is issued."""
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    if waits:
        wait()
    return (time.perf_counter() - start) / calls * 1e6


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def print_table(rows: list[Found]) -> None:
    print(
        f"{'ratio':>6} {'torch us':>9} {'ours us':>9} {'host: torch':>11} {'ours':>6}  product, where it went and why"
    )
    for found in sorted(rows, key=lambda each: each.ratio):
        times = f"{found.torch_us:9.1f} {found.ours_us:9.1f} {found.torch_host_us:11.1f} {found.ours_host_us:6.1f}"
        print(f"{found.ratio:6.3f} {times}  {found.case}, {found.where}: {found.why}")


def print_histogram(title: str, rows: list[Found]) -> None:
    edges = [0.0, 0.5, 1 / 1.15, 1 / 1.05, 1.0, 1.05, 1.5, 2.0, 4.0, math.inf]
    print(f"{title}: {len(rows)} products by torch's time over ours")
    for low, high in pairwise(edges):
        count = sum(low <= found.ratio < high for found in rows)
        print(f"  {low:5.2f} to {high:5.2f} {count:4} {'#' * count}")


def written(found: Found) -> dict[str, object]:
    """A line of the JSON file."""
    fields = asdict(found)
    return {**fields.pop("case"), "dtype": short(found.case.dtype), **fields, "ratio": found.ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description="200 products with tilesmith.override and without, by the wall clock.")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument("--small", action="store_true", help="a few tiny products, emulated on the CPU")
    arguments = parser.parse_args()
    if not (arguments.small or torch.cuda.is_available()):
        raise SystemExit("this measures a GPU, and torch finds none; --small runs a few products in the emulator")
    device = "cpu" if arguments.small else "cuda"
    swept = list(cases(6, largest=24) if arguments.small else cases(200))
    rounds = 2 if arguments.small else 15

    started = time.perf_counter()
    if not arguments.small:
        kernels = compile_kernels(swept)
        name = torch.cuda.get_device_name()
        print(f"{name}, torch {torch.__version__}; {kernels} kernels after {time.perf_counter() - started:.0f} s")
    with float32_precision(), tilesmith.emulate() if arguments.small else nullcontext():
        founds = [measured(case, device, rounds) for case in swept]
        founds = [measured(found.case, device, 3 * rounds) if found.is_slow else found for found in founds]

    long = [found for found in founds if found.is_long]
    not_long = [found for found in founds if not found.is_long]
    slow = [found for found in founds if found.is_slow]
    print_histogram(f"above {LONG_US:.0f} us", long)
    print_histogram(f"up to {LONG_US:.0f} us", not_long)
    print(f"slower than torch by more than 5% above 50 us or 15% below: {len(slow)} of {len(founds)}")
    print_table(slow)
    print(f"took {time.perf_counter() - started:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps([written(found) for found in founds], indent=1) + "\n")
    if wrong := [found for found in founds if found.is_wrong]:
        print("wrong, by the difference from torch's product:")
        for found in wrong:
            print(f"  {found.difference:.1e}  {found.case}, {found.where}: {found.why}")
        sys.exit(1)


if __name__ == "__main__":
    main()
