"""Written modules in tests: the C++ of their host runs as it is; kernels have a stand-in, written_modules.cpp, which
does the same on the CPU's memory."""

import ctypes
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.nn import functional
from torch.utils import cpp_extension

from tilesmith.core.device import named
from tilesmith.kernelbench.chain_spec import ChainSpec
from tilesmith.kernelbench.cuda_text import chain_kernels
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.templates import template

H200: Final = named("h200")
PARTS: Final = (
    "operands",
    "product",
    "linear",
    "factors",
    "triangle",
    "chain",
)  # of the host's C++, each of which may be there
FUNCTIONS: Final = (
    *("use_plans", "multiply", "linear", "scaled", "times", "triangle", "chain"),
    *("planned_calls", "chain_calls", "forget_calls", "use_chains"),
)
CPU: Final = -1  # the index of that GPU

ACTIVATIONS: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
    None: lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


@cache
def extension() -> Any:
    """The host's C++ of all modules, built once. Processes that want it at the same time wait for each other."""
    host = "".join(template(f"{part}.cpp") for part in PARTS)
    stand_in = Path(__file__).with_suffix(".cpp").read_text()
    digest = hashlib.sha256((host + stand_in + torch.__version__).encode()).hexdigest()[:16]
    folder = Path(__file__).parents[2] / "build" / f"written-modules-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "ours").open("w") as lock:
        flock(lock, LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)  # torch's own, of a process that was killed
        return cpp_extension.load_inline(
            f"written_modules_{digest}", [host, stand_in], functions=list(FUNCTIONS), build_directory=str(folder)
        )


def chains_on_the_cpu(chains: Sequence[ChainSpec]) -> int:
    """The address of a function that runs the kernels of chains one thread after the other."""
    text = re.sub(r"struct Everyone.*?(?=namespace chain_0)", "}\n", chain_kernels(chains), flags=re.DOTALL)
    texts = list(dict.fromkeys(chain.text for chain in chains))
    runs = ", ".join(f"run<chain_{texts.index(chain.text)}::Chain>" for chain in chains)
    source = Path(__file__).with_name("chains_on_the_cpu.cpp").read_text()
    source = source.replace("KERNELS", text).replace("RUNS", runs)
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    path = Path(__file__).parents[2] / "build" / f"chains-{digest}.so"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            (Path(folder) / "chains.cpp").write_text(source)
            compiler = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas", "-o", "chains.so"]
            subprocess.run([*compiler, "chains.cpp"], cwd=folder, check=True)
            (Path(folder) / "chains.so").rename(path)
    found = ctypes.cast(ctypes.CDLL(str(path)).run_all, ctypes.c_void_p).value
    assert found is not None
    return found


def executed(text: str) -> dict[str, Any]:
    """The names of a module."""
    names: dict[str, Any] = {"__name__": "new"}
    before = set(names)
    exec(text, names)
    return {name: value for name, value in names.items() if name not in before | {"__builtins__"}}


def on_the_cpu(
    text: str, capability: tuple[int, int] = (8, 0), chains: Sequence[ChainSpec] = ()
) -> tuple[dict[str, Any], Any]:
    """The names of a module whose GPU is this CPU; and the extension, which knows what planned kernels were asked.
    There is one for all modules: it has the plans and chains of the module that was made last."""
    names: dict[str, Any] = {"__name__": "new"}
    exec(text, names)
    left = names.get("_HOST", "")
    for part in (*PARTS, "cuda"):
        left = left.replace(template(f"{part}.cpp"), "")
    assert not left.strip(), "the module has C++ that is not tested here"
    found = extension()
    found.use_plans(CPU, [])
    found.forget_calls()
    found.use_chains(chains_on_the_cpu(chains) if chains else 0)
    cuda = SimpleNamespace(
        current_device=lambda: CPU,
        get_device_capability=lambda _: capability,
        get_device_properties=lambda _: SimpleNamespace(multi_processor_count=132),
    )

    class Torch:
        def __getattr__(self, name: str) -> Any:
            return cuda if name == "cuda" else getattr(torch, name)

    names |= {"_torch": Torch(), "_build": lambda _: found, "_is_on_gpu": lambda _: True, "_MIN_FOLLOWED": 0}
    return names, found


def problem_model(problem: ProblemFile, *arguments: object) -> torch.nn.Module:
    names: dict[str, Any] = {}
    exec(problem.text, names)
    model = names["Model"](*arguments)
    assert isinstance(model, torch.nn.Module)
    return model
