"""From a problem file to a module that was written for it, and what is known of the module then."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tilesmith.core import device as devices
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.check.verdict import Verdict
from tilesmith.kernelbench.cuda_text import device_texts
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.products import plans_of
from tilesmith.kernelbench.recognize import Recognized, recognize
from tilesmith.kernelbench.whole_model import WholeModel
from tilesmith.kernelbench.write import note_of, products_of, written
from tilesmith.runtime import cache


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
    fused: str  # what products do besides, in their own kernels, and what else is one kernel
    left: str  # the operations that stay torch's
    note: str | None  # why there is none, if there is a product
    workspace_bytes: int  # the most that a plan has
    output: str
    sha256: str
    compiled: tuple[str, ...]  # for these architectures, where nothing could be run
    verdict: Verdict | None


def optimized(
    problem: Path,
    output: Path,
    gpu: Device,
    accuracy: Accuracy,
    *,
    standalone: bool = False,
    judge: Callable[[Path], Judge] | None = Judge,
) -> Optimized:
    """Writes the module. Where there is a GPU of its architecture, it is judged, unless there is no judge; elsewhere
    its kernels are compiled."""
    file = ProblemFile.read(problem)
    recognized = recognize(file)
    text = written(file, recognized, gpu, accuracy, standalone=standalone)
    output.write_text(text)
    products = products_of(recognized)
    found = plans_of(products, gpu, accuracy)
    plans = [plan for spec, plan in found.items() if spec in products]  # others are for calls with gradients
    verdict, compiled = None, list[str]()
    if not is_here(gpu):
        chains = recognized.chains if isinstance(recognized, WholeModel) else ()
        for arch, part in device_texts(list(found.values()), chains, gpu, multiplies=recognized.multiplies):
            cache.cubin(part, arch, about=cache.About(file.name, arch=arch))
            compiled.append(arch)
    elif judge is not None:
        with judge(problem) as judged:
            verdict = judged(output, accuracy=accuracy)
    return Optimized(
        problem=file.name,
        computes=recognized.describe(),
        gpu=gpu.name,
        arch=gpu.arch,
        accuracy=accuracy,
        multiplies=recognized.multiplies,
        plan=plans[0].name if plans else None,
        plans=tuple(plan.name for plan in plans),
        fused=_fused(recognized),
        left=recognized.describe_left() if isinstance(recognized, WholeModel) else "",
        note=note_of(recognized, gpu, accuracy),
        workspace_bytes=max((plan.workspace_bytes for plan in plans), default=0),
        output=str(output),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        compiled=tuple(dict.fromkeys(compiled)),
        verdict=verdict,
    )


def is_here(gpu: Device) -> bool:
    """Whether modules for this GPU can be run."""
    here = devices.here()
    return here is not None and here.arch == gpu.arch


def _fused(recognized: Recognized | WholeModel) -> str:
    """The epilogues of products, the most frequent first; then operations that are one kernel."""
    epilogues: Counter[str] = Counter()
    for spec in products_of(recognized):
        parts = ["bias" if spec.has_bias else None, spec.activation]
        epilogues[" + ".join(filter(None, parts))] += 1
    epilogues.pop("", None)
    names = [name if count == 1 else f"{name} ({count} times)" for name, count in epilogues.most_common()]
    return ", ".join([*names, *(recognized.describe_chains() if isinstance(recognized, WholeModel) else [])])
