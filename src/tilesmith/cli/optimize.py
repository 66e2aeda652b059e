"""`tilesmith optimize`: from a problem file to a module with our kernels."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import torch

from tilesmith.cli import UnusableError, console, format_bytes, json_option, print_json, progress_line
from tilesmith.core import device as devices
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.core.errors import UnavailableError
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.check.verdict import Verdict
from tilesmith.kernelbench.cuda_text import device_texts
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile
from tilesmith.kernelbench.products import plans_of
from tilesmith.kernelbench.recognize import recognize
from tilesmith.kernelbench.write import note_of, products_of, written
from tilesmith.runtime import compiler

# By architecture, the GPU that is planned for where none is here, or another is.
_GPUS: Final = {gpu.arch: gpu for gpu in reversed(list(devices.KNOWN_GPUS.values()))}
_DEFAULT: Final = "sm_90a"


@dataclass(frozen=True, slots=True)
class Optimized:
    """What was written, and what is known of it."""

    problem: str
    computes: str
    gpu: str
    arch: str
    accuracy: Accuracy
    plan: str | None  # of the costliest product; None if there is no product, or none that tensor cores do
    note: str | None  # why there is none, if there is a product
    workspace_bytes: int
    output: str
    sha256: str
    compiled: tuple[str, ...]  # for these architectures, where nothing could be run
    verdict: Verdict | None


@click.command()
@click.argument("problem", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The new file.")
@click.option("--accuracy", type=click.Choice(["fp32", "tf32"]), default="fp32", show_default=True)
@click.option("--arch", type=click.Choice(list(_GPUS)), help="The architecture; by default that of the GPU here.")
@click.option("--standalone", is_flag=True, help="Let the new file compare and time itself when it is run.")
@click.option("--no-check", is_flag=True, help="Do not check the new file.")
@json_option
def optimize(
    problem: Path,
    output: Path,
    accuracy: Accuracy,
    arch: str | None,
    standalone: bool,
    no_check: bool,
    as_json: bool,
) -> None:
    """Write a module with custom CUDA kernels for the model in a problem file.

    PROBLEM is a Python file with `class Model(nn.Module)`, `get_inputs()` and `get_init_inputs()`. The new file has
    `class ModelNew` with the same interface, and needs nothing but torch and nvcc.
    """
    if output.exists() and output.samefile(problem):
        raise UnusableError(f"{output} is the problem itself, which is not overwritten")
    try:
        result = _optimized(problem, output, _gpu(arch), accuracy, standalone=standalone, no_check=no_check)
    except (ProblemError, UnavailableError, OSError) as error:
        raise UnusableError(str(error)) from None
    if as_json:
        print_json(result)
    else:
        _report(result)
    if result.verdict is not None and not result.verdict.right:
        raise click.exceptions.Exit(1)


def _optimized(
    problem: Path, output: Path, gpu: Device, accuracy: Accuracy, *, standalone: bool, no_check: bool
) -> Optimized:
    file = ProblemFile.read(problem)
    recognized = recognize(file)
    text = written(file, recognized, gpu, accuracy, standalone=standalone)
    output.write_text(text)
    plans = list(plans_of(products_of(recognized), gpu, accuracy).values())
    is_here = torch.cuda.is_available() and devices.installed(torch.cuda.current_device()).arch == gpu.arch
    verdict, compiled = None, []
    if is_here and not no_check:
        with progress_line("starting") as say, Judge(problem, say=say) as judge:
            verdict = judge(output, accuracy=accuracy)
    elif not is_here:
        for each, part in device_texts(plans, gpu):
            compiler.compile(part, each)
            compiled.append(each)
    return Optimized(
        problem=file.name,
        computes=recognized.describe(),
        gpu=gpu.name,
        arch=gpu.arch,
        accuracy=accuracy,
        plan=plans[0].name if plans else None,
        note=note_of(recognized, gpu, accuracy),
        workspace_bytes=plans[0].workspace_bytes if plans else 0,
        output=str(output),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        compiled=tuple(dict.fromkeys(compiled)),
        verdict=verdict,
    )


def _gpu(arch: str | None) -> Device:
    if torch.cuda.is_available():
        here = devices.installed(torch.cuda.current_device())
        if arch in (None, here.arch):
            return here
    return _GPUS[arch or _DEFAULT]


def _report(result: Optimized) -> None:
    out = console()
    out.print(f"{result.problem} computes {result.computes}")
    if result.plan is None:
        out.print("kernels for any GPU from Turing on")
        if result.note is not None:
            out.print(result.note)
    else:
        workspace = f", {format_bytes(result.workspace_bytes)} of workspace" if result.workspace_bytes else ""
        out.print(f"planned for {result.gpu} ({result.arch}): {result.plan}{workspace}")
    out.print(f"written to {result.output}, sha256 {result.sha256[:16]}")
    if result.verdict is not None:
        out.print(result.verdict.describe())
    elif result.compiled:
        out.print(
            f"compiled for {', '.join(result.compiled)}; there is no {result.arch} GPU here, so neither the result"
        )
        out.print("nor the speed was measured")
