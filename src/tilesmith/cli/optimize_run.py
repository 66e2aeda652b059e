"""What `tilesmith optimize` does, and what it says of it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from tilesmith.cli import format_bytes, progress_line
from tilesmith.core import device as devices
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.check.verdict import Verdict
from tilesmith.kernelbench.cuda_text import device_texts
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.products import plans_of
from tilesmith.kernelbench.recognize import recognize
from tilesmith.kernelbench.write import note_of, products_of, written
from tilesmith.runtime import compiler


@dataclass(frozen=True, slots=True)
class Optimized:
    """What was written, and what is known of it."""

    problem: str
    computes: str
    gpu: str
    arch: str
    accuracy: Accuracy
    multiplies: bool  # it has products, and so kernels of ours
    plan: str | None  # of the costliest product; None if there is no product, or none that tensor cores do
    plans: tuple[str, ...]  # of all products that have one, the costliest first
    note: str | None  # why there is none, if there is a product
    workspace_bytes: int  # the most that a plan has
    output: str
    sha256: str
    compiled: tuple[str, ...]  # for these architectures, where nothing could be run
    verdict: Verdict | None


def optimized(
    problem: Path, output: Path, gpu: Device | None, accuracy: Accuracy, *, standalone: bool, no_check: bool
) -> Optimized:
    """Writes the module, and checks it where there is a GPU of its architecture: then it is that GPU which is planned
    for. If none is given, the one here, or else an H200."""
    here = _here()
    gpu = here if gpu is None or gpu.arch == here.arch else gpu
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
        for each, part in device_texts(plans, gpu) if recognized.multiplies else ():
            compiler.compile(part, each)
            compiled.append(each)
    return Optimized(
        problem=file.name,
        computes=recognized.describe(),
        gpu=gpu.name,
        arch=gpu.arch,
        accuracy=accuracy,
        multiplies=recognized.multiplies,
        plan=plans[0].name if plans else None,
        plans=tuple(plan.name for plan in plans),
        note=note_of(recognized, gpu, accuracy),
        workspace_bytes=max((plan.workspace_bytes for plan in plans), default=0),
        output=str(output),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        compiled=tuple(dict.fromkeys(compiled)),
        verdict=verdict,
    )


def _here() -> Device:
    return (
        devices.installed(torch.cuda.current_device()) if torch.cuda.is_available() else devices.named(devices.STAND_IN)
    )


def report(result: Optimized) -> None:
    click.echo(f"{result.problem} computes {result.computes}")
    if result.plan is None:
        click.echo("kernels for any GPU from Turing on" if result.multiplies else "no kernels of ours")
        if result.note is not None:
            click.echo(result.note)
    else:
        workspace = f", {format_bytes(result.workspace_bytes)} of workspace" if result.workspace_bytes else ""
        plans = ", ".join(result.plans)
        click.echo(f"planned for {result.gpu} ({result.arch}): {plans}{workspace}")
    click.echo(f"written to {result.output}, sha256 {result.sha256[:16]}")
    if result.verdict is not None:
        click.echo(result.verdict.describe())
    elif result.compiled:
        click.echo(
            f"compiled for {', '.join(result.compiled)}; there is no {result.arch} GPU here, so neither the result\n"
            "nor the speed was measured"
        )
