"""Fits the constants of the `sm90` family's cost model to timings of `tilesmith tune`, and prints them.

    suites="--suite aligned --suite odd --suite skinny --suite batched"
    tilesmith tune $suites --within 1.8 --json float32.json
    tilesmith tune $suites --within 1.8 --dtype bfloat16 --json half.json
    PYTHONPATH=src python3 scripts/fit_costs.py float32.json half.json

Each file has timings of one type, and is fitted by itself. Needs no GPU. What counts most is how the configurations
of one product compare: the clock depends on the product, which the model does not know. A constant is moved as long as
that makes the estimates better, and so little that what the timings do not tell stays as it was. Whether to take the
new constants depends on the regret, which is printed for the old ones and the new ones.
"""

import json
import math
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from tilesmith.bench import suites
from tilesmith.device import STAND_IN, Device, named
from tilesmith.kernels import sm90, sm90_cost
from tilesmith.planner.tuned import key
from tilesmith.problem import Problem

CLOCKS_PER_MS: Final = 1.755e6  # under load
ROUNDS: Final = 6000
ABSOLUTE: Final = 0.05  # of a product's mean error, against those of its configurations relative to it
KEPT: Final = 0.02  # of the squared distance of a constant's logarithm, in the mean of the squared errors
# By the name of the rates, those outside of them that only such products have.
OTHERS: Final = {
    "_PLANES": ("_RAW_READ", "_SHARE_OF_ODD_WIDTHS", "_PAIRS_IN_BATCHES"),
    "_SINGLE": ("_SHARE_OF_NARROW_PANELS",),
}
GPU: Final[Device] = named(STAND_IN)


@dataclass(frozen=True, slots=True)
class Timed:
    """One configuration of a product."""

    product: str
    name: str
    work: sm90_cost.Work
    milliseconds: float
    weight: float  # the less, the slower it is than the best of its product


def main() -> None:
    for file in sys.argv[1:]:
        fit(file, list(timings(json.loads(Path(file).read_text()))))


def timings(entries: list[dict[str, Any]]) -> Iterator[Timed]:
    """The configurations of this family in what `tune` wrote, of products that are in a suite."""
    problems = {
        key(problem): problem
        for suite in suites.NAMES
        for product in suites.load(suite)
        for dtype in ("float32", "bfloat16", "float16")
        for problem in [Problem.of(*replace(product, dtype=dtype).operands("meta"))]
    }
    for entry in entries:
        problem = problems[entry["problem"]]
        best = min(entry["milliseconds"].values())
        configurations = {f"sm90 {each}": each for each in sm90.configurations(problem, GPU)}
        for name, milliseconds in entry["milliseconds"].items():
            if name in configurations:
                work = sm90.work(problem, GPU, configurations[name])
                yield Timed(entry["problem"], name, work, milliseconds, (best / milliseconds) ** 4)


def fit(file: str, timed: list[Timed]) -> None:
    rates = "_PLANES" if timed[0].work.planes > 1 else "_SINGLE"
    start = constants(rates)
    print(f"\n{file}: {len(timed)} timings of {len({each.product for each in timed})} products")
    report("before", timed)
    draw, found, least = random.Random(0), dict(start), loss(timed, rates, start, start)
    for round_ in range(ROUNDS):
        name = draw.choice([each for each in start if start[each] > 0])
        moved = found | {name: found[name] * math.exp(draw.gauss(0, 0.2 if round_ < ROUNDS / 2 else 0.04))}
        if "share" in name.lower() and moved[name] > 1:
            continue
        then = loss(timed, rates, moved, start)
        if then < least:
            found, least = moved, then
    found = {name: float(f"{value:.4g}") for name, value in found.items()}
    use(rates, found)
    report("after", timed)
    for name, value in found.items():
        print(f"    {name} = {value:<10g} was {start[name]:g}")


def constants(rates: str) -> dict[str, float]:
    model = vars(sm90_cost)
    return {**asdict(model[rates]), **{name: model[name] for name in OTHERS[rates]}}


def use(rates: str, values: dict[str, float]) -> None:
    others = {name: values[name] for name in OTHERS[rates]}
    for name, value in others.items():
        setattr(sm90_cost, name, value)
    fields = {name: value for name, value in values.items() if name not in others}
    setattr(sm90_cost, rates, replace(vars(sm90_cost)[rates], **fields))


def loss(timed: list[Timed], rates: str, values: dict[str, float], start: dict[str, float]) -> float:
    use(rates, values)
    errors = statistics.fmean(map(error_of_product, by_product(timed).values()))
    distances = (math.log(values[name] / start[name]) ** 2 for name in start if start[name] > 0)
    return errors + KEPT * statistics.fmean(distances)


def by_product(timed: list[Timed]) -> dict[str, list[Timed]]:
    found: dict[str, list[Timed]] = {}
    for each in timed:
        found.setdefault(each.product, []).append(each)
    return found


def error_of_product(timed: list[Timed]) -> float:
    """The variance of its estimates' errors, and a little of their mean."""
    errors, weights = [error(each) for each in timed], [each.weight for each in timed]
    mean = sum(map(math.prod, zip(errors, weights, strict=True))) / sum(weights)
    variance = sum(weight * (each - mean) ** 2 for each, weight in zip(errors, weights, strict=True)) / sum(weights)
    return variance + ABSOLUTE * mean**2


def error(each: Timed) -> float:
    """The logarithm of the estimate divided by the timing."""
    return math.log(estimate(each) / each.milliseconds)


def estimate(each: Timed) -> float:
    cost = sm90_cost.cost(each.work, GPU)
    return (cost.cycles + cost.timer) / CLOCKS_PER_MS


def report(when: str, timed: list[Timed]) -> None:
    regrets = {}
    for product, ones in by_product(timed).items():
        taken, fastest = min(ones, key=estimate), min(ones, key=lambda each: each.milliseconds)
        regrets[product] = (taken.milliseconds / fastest.milliseconds, taken.name, fastest.name)
    off = math.sqrt(statistics.fmean(error(each) ** 2 for each in timed))
    mean = statistics.geometric_mean([regret for regret, _, _ in regrets.values()])
    print(f"  {when}: estimates are off by {off:.1%} (root mean square); regret: mean {mean:.4f}, and the worst:")
    for product, (regret, chosen, best) in sorted(regrets.items(), key=lambda item: -item[1][0])[:4]:
        print(f"    {regret:.3f}  {chosen} where {best} is the best of {product.split(' a ')[0]}")


if __name__ == "__main__":
    main()
