"""The figures of docs/measured.md, measured on the GPU of this machine.

    PYTHONPATH=src python3 scripts/measure.py [speed] [half] [fp32] [tf32] [pack] [epilogue] [host] [first]

With no argument, all parts.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional

import tilesmith
from tilesmith import accuracy as accuracies
from tilesmith import device
from tilesmith.bench.errors import error
from tilesmith.bench.suites import Product, load
from tilesmith.bench.timing import graphed, interleaved
from tilesmith.epilogue import ACTIVATIONS
from tilesmith.planner import choose
from tilesmith.problem import Problem


def speed() -> None:
    """Each product against torch's where torch has one: milliseconds, TFLOP/s, ratio, errors."""
    products = [
        *load("seeds"),
        *(Product(f"square {s}", s, s, s, "") for s in (256, 512, 1024, 2048, 8192)),
        *(
            Product(f"square 4096 {dtype}", 4096, 4096, 4096, "", dtype=dtype)
            for dtype in ("float64", "int32", "int64")
        ),
        Product("square 4096 int8", 4096, 4096, 4096, "", dtype="int8"),
    ]
    print(f"{'product':24} {'plan':17} {'ours ms':>9} {'torch ms':>9} {'ratio':>6} {'TF':>6}  comp / norm: ours, torch")
    for product in products:
        a, b = product.operands("cuda")
        is_float = a.dtype.is_floating_point
        competitors: dict[str, Callable[[], object]] = {"ours": partial(tilesmith.matmul, a, b, accuracy="ieee")}
        if is_float:
            competitors["torch"] = partial(torch.matmul, a, b)
        times = interleaved(competitors, rounds=15)
        problem = Problem.of(a, b, accuracy="ieee")
        plan = choose(problem, device.installed(0))
        ours = times["ours"].median
        row = f"{product.name:24} {plan.name:17} {ours:9.4f} "
        if is_float:
            torchs = times["torch"].median
            row += f"{torchs:9.4f} {torchs / ours:6.3f} "
        else:
            row += f"{'none':>9} {'':6} "
        row += f"{problem.flops / ours / 1e9:6.1f}  "
        if is_float:
            errors = error(tilesmith.matmul(a, b, accuracy="ieee"), a, b), error(torch.matmul(a, b), a, b)
            row += ", ".join(map(str, errors))
        print(row, flush=True)
        del a, b, competitors
        torch.cuda.empty_cache()


def half() -> None:
    """The suites in bfloat16 and float16: microseconds, ratio, and our error as a share of torch's."""
    for name in ("aligned", "odd", "skinny", "batched", "small"):
        for dtype in ("bfloat16", "float16"):
            ratios = []
            for product in (replace(each, dtype=dtype) for each in load(name)):
                a, b = product.operands("cuda")
                competitors = {"ours": partial(tilesmith.matmul, a, b), "torch": partial(torch.matmul, a, b)}
                times = graphed(competitors) if name == "small" else interleaved(competitors, rounds=15)
                ours, torchs = times["ours"].median * 1e3, times["torch"].median * 1e3
                ratios.append(torchs / ours)
                problem = Problem.of(a, b)
                shares = [_error_share(a, b), _error_share(torch.rand_like(a), torch.rand_like(b))]
                print(
                    f"{product!s:34} {dtype:8} {choose(problem, device.installed(0)).name:32} {ours:9.2f} us "
                    f"{problem.flops / ours / 1e6:5.0f} TF  torch {torchs:9.2f}  ratio {ratios[-1]:.3f}  "
                    f"norm/torch's: randn {shares[0]:.3f} rand {shares[1]:.3f}",
                    flush=True,
                )
                del a, b, competitors
                torch.cuda.empty_cache()
            mean = statistics.geometric_mean(ratios)
            print(f"{name} {dtype}: geometric mean {mean:.3f}, least {min(ratios):.3f}", flush=True)


def fp32() -> None:
    """float32 as accurate as torch's: microseconds, ratio, errors; and the same of values that need the wide scheme."""
    products = [
        *load("seeds"),
        Product("square 8192", 8192, 8192, 8192, ""),
        Product("batch", 512, 1024, 2048, "", batch=128),
        Product("large K", 256, 524288, 256, ""),
        Product("vocabulary", 2048, 1600, 50257, ""),
        *(Product(f"{rows} rows", rows, 8192, 8192, "") for rows in (1, 16, 32, 64, 128)),
        *(Product(f"square {s}", s, s, s, "") for s in (64, 128, 256, 512, 1024, 2048)),
    ]
    for product in products:
        a, b = product.operands("cuda")
        competitors = {"ours": partial(tilesmith.matmul, a, b), "torch": partial(torch.matmul, a, b)}
        if not product.batch:
            grades = torch.exp2(torch.linspace(-20, 20, product.k, device="cuda"))
            competitors["graded"] = partial(tilesmith.matmul, a * grades, b / grades[:, None])
        _report(product, a, b, "fp32", competitors)
        if product.m == product.n and product.m <= 2048:
            times = graphed({name: competitors[name] for name in ("ours", "torch")})
            ours, torchs = times["ours"].median * 1e3, times["torch"].median * 1e3
            print(f"{'':34} in a graph {ours:9.2f} us  torch {torchs:9.2f}  ratio {torchs / ours:.3f}", flush=True)
        del a, b, competitors
        torch.cuda.empty_cache()


def tf32() -> None:
    """The same against torch's TF32 product."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    ratios = []
    for product in [*load("aligned"), *load("seeds")[3:]]:
        product = replace(product, dtype="float32")
        a, b = product.operands("cuda")
        ours, theirs = partial(tilesmith.matmul, a, b, accuracy="tf32"), partial(torch.matmul, a, b)
        ratio = _report(product, a, b, "tf32", {"ours": ours, "torch": theirs})
        if product in [replace(each, dtype="float32") for each in load("aligned")]:
            ratios.append(ratio)
        del a, b, ours, theirs
        torch.cuda.empty_cache()
    print(f"aligned tf32: geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}", flush=True)
    torch.backends.cuda.matmul.fp32_precision = before


def pack() -> None:
    """float32 with a packed `b`, with both packed, and with none: microseconds, and what packing saves."""
    products = [Product("128 rows", 128, 4096, 4096, ""), Product("square 4096", 4096, 4096, 4096, "")]
    for product in products:
        a, b = product.operands("cuda")
        packed_a, packed_b = tilesmith.pack(a, first=True), tilesmith.pack(b)
        competitors = {
            "tensors": partial(tilesmith.matmul, a, b),
            "b packed": partial(tilesmith.matmul, a, packed_b),
            "both packed": partial(tilesmith.matmul, packed_a, packed_b),
            "torch": partial(torch.matmul, a, b),
        }
        times = {name: timing.median * 1e3 for name, timing in interleaved(competitors, rounds=15).items()}
        for name, microseconds in times.items():
            saved = times["tensors"] - microseconds
            row = f"{product!s:34} {name:12} {microseconds:9.1f} us, {saved:7.1f} us less than with tensors"
            print(f"{row}, ratio to torch {times['torch'] / microseconds:.3f}", flush=True)
        for name, sides in {"tensors": (False, False), "b packed": (False, True), "both packed": (True, True)}.items():
            plan = choose(Problem.of(a, b, packed=sides), device.installed(0))
            print(f"{'':34} {name:12} {plan.name}, workspace {plan.workspace_bytes >> 20} MiB", flush=True)
        del a, b, packed_a, packed_b, competitors
        torch.cuda.empty_cache()


def _report(
    product: Product,
    a: torch.Tensor,
    b: torch.Tensor,
    accuracy: str,
    competitors: Mapping[str, Callable[[], torch.Tensor]],
) -> float:
    times = {name: time.median * 1e3 for name, time in interleaved(competitors, rounds=11).items()}
    problem = Problem.of(a, b, accuracy=accuracies.resolve(accuracy))
    plan = choose(problem, device.installed(0))
    ratio = times["torch"] / times["ours"]
    row = (
        f"{product!s:34} {accuracy} {plan.name:30} {times['ours']:9.1f} us  torch {times['torch']:9.1f}  "
        f"ratio {ratio:.3f}  {problem.flops / times['ours'] / 1e6:5.0f} TF  {plan.workspace_bytes >> 20:5d} MiB"
    )
    if "graded" in times:
        row += f"  graded {times['graded']:9.1f} us, ratio {times['torch'] / times['graded']:.3f}"
    if problem.m * problem.n * problem.batches <= 8192 * 8192 and problem.k <= 8192:
        row += f"  error {error(competitors['ours'](), a, b)}, torch {error(competitors['torch'](), a, b)}"
    print(row, flush=True)
    return ratio


def _error_share(a: torch.Tensor, b: torch.Tensor) -> float:
    return error(tilesmith.matmul(a, b), a, b).norm / error(torch.matmul(a, b), a, b).norm


def epilogue() -> None:
    """What may follow a product of 4096^3 in bfloat16, in our kernel and by torch: microseconds."""
    x, residual = (torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    weight = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda") / 64
    bias = torch.randn(4096, dtype=torch.bfloat16, device="cuda")

    def gelu_by_torch() -> torch.Tensor:
        return functional.gelu(functional.linear(x, weight, bias))

    linear = partial(tilesmith.linear, x, weight, bias)
    competitors: dict[str, Callable[[], object]] = {
        "torch: linear": partial(functional.linear, x, weight, bias),
        "torch: gelu(linear)": gelu_by_torch,
        "torch.compile: gelu(linear)": torch.compile(gelu_by_torch),
        "torch: addmm of a matrix": partial(torch.addmm, residual, x, weight.T),
        "ours: matmul": partial(tilesmith.matmul, x, weight.T),
        "ours: linear": linear,
        **{f"ours: linear, {name}": partial(linear, activation=name) for name in ACTIVATIONS},
        "ours: linear, gelu, residual": partial(linear, activation="gelu", residual=residual),
        "ours: a residual alone": partial(tilesmith.linear, x, weight, residual=residual),
    }
    times = {name: timing.median * 1e3 for name, timing in interleaved(competitors, rounds=60).items()}
    for name, microseconds in times.items():
        print(f"{name:30} {microseconds:7.1f} us", flush=True)
    for name in ("torch: gelu(linear)", "torch.compile: gelu(linear)"):
        print(f"linear with gelu, ratio to {name:28} {times[name] / times['ours: linear, gelu']:.3f}", flush=True)


def _microseconds_a_call(call: Callable[[], object], calls: int = 2000) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls * 1e6


def host() -> None:
    """Wall time of a call in a tight loop, ours and torch's in turn: 64x64 float32; and torch's own operators with an
    override and without."""
    a, b = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    competitors: dict[str, Callable[[], object]] = {
        "tilesmith.matmul": lambda: tilesmith.matmul(a, b),
        "torch.matmul": lambda: torch.matmul(a, b),
        "through the dispatcher": lambda: torch.ops.tilesmith.matmul(a, b),
    }
    samples: dict[str, list[float]] = {name: [] for name in competitors}
    for round_ in range(12):
        for name, call in competitors.items():
            sample = _microseconds_a_call(call)
            if round_ >= 2:
                samples[name].append(sample)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    for name, median in medians.items():
        print(f"{name:24} {median:6.2f} us a call, ratio to torch {median / medians['torch.matmul']:.2f}")

    half = torch.randn(63, 63, dtype=torch.bfloat16, device="cuda")
    operators: dict[str, Callable[[], object]] = {
        "mm 64x64 float32": partial(torch.mm, a, b),
        "mm 63x63 bfloat16": partial(torch.mm, half, half),
        "addmm 64x64 float32, a row": partial(torch.addmm, a[0], a, b),
        "addmm 63x63 bfloat16, a row": partial(torch.addmm, half[0], half, half),
        "addmm 64x64 float32, a matrix": partial(torch.addmm, a, a, b),
    }
    for name, call in operators.items():
        sides: dict[str, list[float]] = {"torch": [], "ours": []}
        for round_ in range(12):
            for side, times in sides.items():
                with tilesmith.override() if side == "ours" else nullcontext():
                    sample = _microseconds_a_call(call)
                if round_ >= 2:
                    times.append(sample)
        torchs, ours = (statistics.median(times) for times in sides.values())
        print(f"{name:30} torch {torchs:6.2f} us a call, overridden {ours:6.2f}, ratio {ours / torchs:.2f}", flush=True)


_FIRST_CALL = """
import time, torch
a, b = torch.randn(4096, 4096, device="cuda"), torch.randn(4096, 4096, device="cuda")
torch.cuda.synchronize()
start = time.perf_counter()
import tilesmith
tilesmith.matmul(a, b)
torch.cuda.synchronize()
print(f"{time.perf_counter() - start:.3f}")
"""


def first() -> None:
    """Seconds of a new process's first call, import included, with its CUDA context standing."""
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("cold", "warm", "warm", "warm"):
            # NVRTC has a cache of its own, which would make a second cold run look fast.
            environment = {**os.environ, "XDG_CACHE_HOME": folder, "CUDA_CACHE_DISABLE": "1"}
            run = subprocess.run([sys.executable, "-c", _FIRST_CALL], env=environment, capture_output=True, text=True)
            print(f"first call, {cache} cache: {run.stdout.strip() or run.stderr} s", flush=True)


PARTS = {
    "speed": speed,
    "half": half,
    "fp32": fp32,
    "tf32": tf32,
    "pack": pack,
    "epilogue": epilogue,
    "host": host,
    "first": first,
}

if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}")
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
