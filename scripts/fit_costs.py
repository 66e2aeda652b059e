"""Fits the rates of the `hopper` family's cost model to timings of `tilesmith tune`, and prints or writes them.

    suites="--suite aligned --suite odd --suite skinny --suite batched"
    tilesmith tune $suites --within 1.8 --record float32.json
    tilesmith tune $suites --within 1.8 --dtype bfloat16 --record half.json
    PYTHONPATH=src python3 scripts/fit_costs.py float32.json half.json --write src/tilesmith/planner/rates/h200.toml

`--write` puts the numbers into the tables of a GPU's file, with the date, the command and what they were fitted to, and
`--gpu` names that file's GPU where it is not the one that is planned for without any. docs/bench.md, "Rates of a GPU",
tells how to make a file.

Each file of timings has those of one type, and is fitted by itself. Needs no GPU. What counts most is how the
configurations of one product compare: the clock depends on the product, which the model does not know. A rate is moved
as long as that makes the estimates better, and so little that what the timings do not tell stays as it was. Whether to
take the new rates depends on the regret, which is printed for the old ones and the new ones.
"""

import argparse
import json
import math
import random
import shlex
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Final

import torch

from tilesmith.bench import suites, vocabulary
from tilesmith.bench.rates_text import facts_text, patched
from tilesmith.core import rates as device_rates
from tilesmith.core.device import STAND_IN, Device, installed, named
from tilesmith.core.gpu_files import GpuFile
from tilesmith.core.problem import Problem
from tilesmith.core.roofline import Peak
from tilesmith.kernels.hopper import cost as hopper_cost
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper import tiles
from tilesmith.kernels.hopper.cost import Rates
from tilesmith.planner.tuned import key

ROUNDS: Final = 6000
ABSOLUTE: Final = 0.05  # of a product's mean error, against those of its configurations relative to it
KEPT: Final = 0.02  # of the squared distance of a rate's logarithm, in the mean of the squared errors
# By the table of the rates, those of other tables that only such products have.
OTHERS: Final = {
    "terms": ("split_in_registers.read_bytes_per_clock", "common.odd_width_share", "common.batched_cluster_factor"),
    "single": ("common.narrow_panel_share",),
}


@dataclass(frozen=True, slots=True)
class Timed:
    """One configuration of a product."""

    product: str
    name: str
    work: hopper_cost.Work
    milliseconds: float
    weight: float  # the less, the slower it is than the best of its product


@dataclass(frozen=True, slots=True)
class Model:
    """The cost model with some rates."""

    gpu: Device
    rates: Rates
    clocks_per_ms: float

    def milliseconds(self, each: Timed) -> float:
        cost = hopper_cost.cost_by(self.rates, each.work, self.gpu)
        return (cost.cycles + cost.timer) / self.clocks_per_ms

    def error(self, each: Timed) -> float:
        """The logarithm of the estimate divided by the timing."""
        return math.log(self.milliseconds(each) / each.milliseconds)

    def with_values(self, values: dict[str, float]) -> "Model":
        """The model with other values, by table and name."""
        tables: dict[str, dict[str, float]] = {}
        for path, value in values.items():
            table, name = path.split(".")
            tables.setdefault(table, {})[name] = value
        changed = {table: replace(getattr(self.rates, table), **each) for table, each in tables.items()}
        return replace(self, rates=replace(self.rates, **changed))


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits the rates of the hopper family to timings of tilesmith tune.")
    parser.add_argument("timings", nargs="*", help="what `tilesmith tune --record` wrote")
    parser.add_argument("--gpu", default=None, help="the GPU of the timings; that of the file to write, or an H200")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a GPU's file, planner/rates/<gpu>.toml")
    options = parser.parse_args()
    if options.write and not options.write.exists():
        options.write.write_text(facts_of_this_gpu())
        print(f"{options.write} is new, with the facts of the GPU that is here")
    gpu = named(options.gpu or (options.write.stem if options.write else STAND_IN))
    clocks = device_rates.section(gpu, "clocks", device_rates.Clocks)
    model = Model(gpu, hopper_cost.rates_of(gpu), clocks.per_us * 1e3)
    for file in options.timings:
        timed = list(timings(json.loads(Path(file).read_text()), gpu))
        fitted = fit(file, timed, model)
        if options.write:
            write(options.write, model, fitted, f"{len(timed)} timings of {len(by_product(timed))} products.")
        model = fitted


def facts_of_this_gpu() -> str:
    peak = Peak.of_properties(torch.cuda.get_device_properties(0)) if torch.cuda.is_available() else None
    if peak is None:
        sys.exit("A new file is made on the GPU itself; or copy another one, and fill in its table [gpu].")
    return facts_text(installed(0), peak)


def write(path: Path, before: Model, after: Model, note: str) -> None:
    """Puts what was fitted into a file, and the tables that it lacks, which have the rates of the nearest GPU."""
    text = path.read_text()
    file = GpuFile.parse(path.stem, text)
    old, new = asdict(before.rates), asdict(after.rates)
    for table, values in new.items():
        changed = {name: value for name, value in values.items() if value != old[table][name]}
        if file.table(f"hopper.{table}") is not None and not changed:
            continue
        about = f"{note} They moved {', '.join(changed)}." if changed else "The nearest GPU's rates; not fitted here."
        command = f"PYTHONPATH=src python3 {shlex.join(sys.argv)}"
        source = {"fitted": date.today(), "command": command, "note": about}
        text = patched(text, f"hopper.{table}", source | values)
    GpuFile.parse(path.stem, text).rates("hopper", Rates)  # raises for a file that could not be read
    path.write_text(text)


def timings(entries: list[dict[str, Any]], gpu: Device) -> Iterator[Timed]:
    """The configurations of this family in what `tune` wrote, of products that are in a suite."""
    problems = {
        key(problem): problem
        for suite in vocabulary.SUITES
        for product in suites.load(suite)
        for dtype in ("float32", "bfloat16", "float16")
        for problem in [Problem.of(*replace(product, dtype=dtype).operands("meta"))]
    }
    for entry in entries:
        problem = problems[entry["problem"]]
        best = min(entry["milliseconds"].values())
        configurations = {f"hopper {each}": each for each in tiles.configurations(problem, gpu)}
        for name, milliseconds in entry["milliseconds"].items():
            if name in configurations:
                work = hopper.work(problem, gpu, configurations[name])
                yield Timed(entry["problem"], name, work, milliseconds, (best / milliseconds) ** 4)


def fit(file: str, timed: list[Timed], model: Model) -> Model:
    table = "terms" if timed[0].work.terms > 1 else "single"
    start = movable(model, table)
    print(f"\n{file}: {len(timed)} timings of {len(by_product(timed))} products")
    report("before", timed, model)
    draw, found, least = random.Random(0), dict(start), loss(timed, model, start, start)
    for round_ in range(ROUNDS):
        name = draw.choice(list(start))
        moved = found | {name: found[name] * math.exp(draw.gauss(0, 0.2 if round_ < ROUNDS / 2 else 0.04))}
        if "share" in name and moved[name] > 1:
            continue
        then = loss(timed, model, moved, start)
        if then < least:
            found, least = moved, then
    found = {name: float(f"{value:.4g}") for name, value in found.items()}
    fitted = model.with_values(found)
    report("after", timed, fitted)
    for name, value in found.items():
        print(f"    {name} = {value:<10g} was {start[name]:g}")
    return fitted


def movable(model: Model, table: str) -> dict[str, float]:
    """The rates to fit: those that are not zero, which means none, nor counts."""
    tables = asdict(model.rates)
    every = {f"{table}.{name}": value for name, value in tables[table].items()}
    for path in OTHERS[table]:
        other, name = path.split(".")
        every[path] = tables[other][name]
    return {path: value for path, value in every.items() if isinstance(value, float) and value > 0}


def loss(timed: list[Timed], model: Model, values: dict[str, float], start: dict[str, float]) -> float:
    moved = model.with_values(values)
    errors = statistics.fmean(error_of_product(each, moved) for each in by_product(timed).values())
    return errors + KEPT * statistics.fmean(math.log(values[name] / start[name]) ** 2 for name in start)


def by_product(timed: list[Timed]) -> dict[str, list[Timed]]:
    found: dict[str, list[Timed]] = {}
    for each in timed:
        found.setdefault(each.product, []).append(each)
    return found


def error_of_product(timed: list[Timed], model: Model) -> float:
    """The variance of its estimates' errors, and a little of their mean."""
    errors, weights = [model.error(each) for each in timed], [each.weight for each in timed]
    mean = sum(map(math.prod, zip(errors, weights, strict=True))) / sum(weights)
    variance = sum(weight * (each - mean) ** 2 for each, weight in zip(errors, weights, strict=True)) / sum(weights)
    return variance + ABSOLUTE * mean**2


def report(when: str, timed: list[Timed], model: Model) -> None:
    regrets = {}
    for product, ones in by_product(timed).items():
        taken, fastest = min(ones, key=model.milliseconds), min(ones, key=lambda each: each.milliseconds)
        regrets[product] = (taken.milliseconds / fastest.milliseconds, taken.name, fastest.name)
    off = math.sqrt(statistics.fmean(model.error(each) ** 2 for each in timed))
    mean = statistics.geometric_mean([regret for regret, _, _ in regrets.values()])
    print(f"  {when}: estimates are off by {off:.1%} (root mean square); regret: mean {mean:.4f}, and the worst:")
    for product, (regret, chosen, best) in sorted(regrets.items(), key=lambda item: -item[1][0])[:4]:
        print(f"    {regret:.3f}  {chosen} where {best} is the best of {product.split(' a ')[0]}")


if __name__ == "__main__":
    main()
