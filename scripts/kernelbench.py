"""Writes a module for each of the 18 problems, judges all of them on the GPU of this machine, and prints the table.

    PYTHONPATH=src python3 scripts/kernelbench.py [FOLDER] [NUMBER ...]

With no number, all problems. The modules are left in FOLDER (default: a temporary one). Afterwards the five reference
jobs, which are plain products, are timed beside `tilesmith.matmul`.
"""

import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

import tilesmith
from tilesmith import device
from tilesmith.bench.timing import interleaved
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.check.verdict import Verdict
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.recognize import recognize
from tilesmith.kernelbench.write import plan_of, written

_FOLDER: Final = Path(tilesmith.__file__).parent / "kernelbench" / "problems"
_PROBLEMS: Final = {int(path.name[:2]): path for path in sorted(_FOLDER.glob("[0-9]*.py"))}
_BUILDS: Final = 9  # at the same time
_NO_PRODUCTS: Final = (5, 12)
_REFERENCE_JOBS: Final = {1: "", 2: "", 16: "a", 7: "", 8: ""}  # the operand that is stored transposed


def main(folder: Path, numbers: list[int]) -> None:
    gpu = threading.Lock()
    with ThreadPoolExecutor(_BUILDS) as pool:
        judged = dict(zip(numbers, pool.map(lambda number: _judged(number, folder, gpu), numbers), strict=True))
        jobs = [number for number in _REFERENCE_JOBS if number in numbers and judged[number].right]
        modules = dict(zip(jobs, pool.map(lambda number: _loaded(folder / _name(number)), jobs), strict=True))
    ratios = {number: _ratio(verdict) for number, verdict in judged.items() if verdict.speed}
    print(f"\n{sum(verdict.right for verdict in judged.values())} of {len(judged)} are right")
    if products := [ratio for number, ratio in ratios.items() if number not in _NO_PRODUCTS]:
        mean, least = statistics.geometric_mean(products), min(ratios.values())
        print(f"products: geometric mean {mean:.3f} of torch's speed; least of all {least:.3f}")
    for number, module in modules.items():
        print(f"{_name(number):24} {_share(number, module):.3f} of the speed of tilesmith.matmul", flush=True)


def _judged(number: int, folder: Path, gpu: threading.Lock) -> Verdict:
    problem = ProblemFile.read(_PROBLEMS[number])
    recognized = recognize(problem)
    here = device.installed(0)
    target = folder / _name(number)
    target.write_text(written(problem, recognized, here, "fp32"))
    plan = plan_of(recognized, here, "fp32")
    start = time.perf_counter()
    with Judge(_PROBLEMS[number], turn=gpu) as judge:
        verdict = judge(target)
    took = time.perf_counter() - start
    row = f"{target.name:24} {plan.name if plan else 'elementwise':34} "
    if verdict.speed:
        ours, torchs = verdict.speed.candidate.median, verdict.speed.torch["fp32"].median
        row += f"{ours:9.4f} ms  torch {torchs:9.4f}  ratio {torchs / ours:.3f}  {verdict.precision}"
        if verdict.speed.roofline_percent is not None:
            row += f"  roofline {verdict.speed.roofline_percent:.0f} %"
    print(f"{row}  ({took:.0f} s)", flush=True)
    if not verdict.right:
        print(verdict.describe(), flush=True)
    return verdict


def _name(number: int) -> str:
    return _PROBLEMS[number].name


def _ratio(verdict: Verdict) -> float:
    assert verdict.speed is not None
    return verdict.speed.torch["fp32"].median / verdict.speed.candidate.median


def _loaded(path: Path) -> ModuleType:
    """The module, built in this process."""
    module = ModuleType(path.stem)
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    return module


def _share(number: int, module: Any) -> float:
    problem: Any = _loaded(_PROBLEMS[number])
    a, b = (x.cuda() for x in problem.get_inputs())
    left = a.T if _REFERENCE_JOBS[number] else a
    new = module.ModelNew(*problem.get_init_inputs())
    times = interleaved({"module": lambda: new(a, b), "matmul": lambda: tilesmith.matmul(left, b)}, rounds=20)
    return times["matmul"].median / times["module"].median


if __name__ == "__main__":
    arguments = sys.argv[1:]
    chosen = [int(x) for x in arguments if x.isdigit()] or list(_PROBLEMS)
    folders = [Path(x) for x in arguments if not x.isdigit()]
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    with tempfile.TemporaryDirectory() as temporary:
        where = folders[0] if folders else Path(temporary)
        where.mkdir(parents=True, exist_ok=True)
        main(where, chosen)
