"""Imports go downward only, and importing the package does nothing else."""

import ast
import json
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib import resources
from pathlib import Path

import pytest

PACKAGE = Path(str(resources.files("tilesmith")))

# Unit (a module or a folder of the package) -> the units that it may import, besides itself and what these may.
# "" is the package's own __init__.
BELOW: dict[str, set[str]] = {
    "version": set(),
    "process": set(),
    "core": {"version"},
    "kernels": {"core"},
    "planner": {"kernels"},
    "runtime": {"planner"},
    "emulator": {"runtime"},
    "torch_ops": {"runtime"},
    "explain": {"kernels"},
    "override": {"runtime"},
    "inductor": {"override", "torch_ops"},
    "api": {"torch_ops"},
    "ahead": {"torch_ops", "override", "explain"},
    "nn": {"api"},
    "names": {"nn", "ahead", "emulator", "inductor"},
    "": {"names", "process"},
    "bench": {""},
    "kernelbench": {"bench"},
    "cli": {"kernelbench"},
    "__main__": {"cli"},
}


def may_import(name: str) -> set[str]:
    return {name}.union(*map(may_import, BELOW[name]))


def modules() -> dict[str, Path]:
    """Every module of the package by its name without "tilesmith."; the package itself is ""."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_names(path: Path) -> set[str]:
    """The full names that a file imports, inside functions too; `from x import y` gives x.y."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_modules(path: Path) -> set[str]:
    """The modules of the package that a file imports: the longest part of each name that is one."""
    known, found = modules(), set()
    for name in imported_names(path):
        first, _, rest = name.partition(".")
        if first == "tilesmith":
            while rest not in known:
                rest = rest.rpartition(".")[0]
            found.add(rest)
    return found


def unit(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_module_imports_only_what_is_below_it(module: str) -> None:
    allowed = may_import(unit(module))
    upward = {target for target in imported_modules(modules()[module]) if unit(target) not in allowed}
    assert upward == set()


def test_the_layers_are_found() -> None:
    assert {unit(module) for module in modules()} == BELOW.keys()
    assert imported_modules(PACKAGE / "torch_ops/matmul.py") >= {"runtime.executor", "core.checks"}
    assert imported_modules(PACKAGE / "runtime/executor.py") >= {"planner.choose", "runtime.loading", "runtime.driver"}


def test_what_compiles_and_launches_knows_neither_families_nor_the_planner() -> None:
    names = (
        "source",
        "compiler",
        "cache",
        "archive",
        "cubins",
        "driver",
        "launches",
        "loading",
        "graph_replay",
        "workspace",
        "registry",
    )
    for name in names:
        found = {unit(target) for target in imported_modules(PACKAGE / f"runtime/{name}.py")}
        assert found <= {"core", "runtime"}, name


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = {module: imported_modules(path) - {module} for module, path in modules().items()}
    order = list(TopologicalSorter(graph).static_order())  # raises for a cycle
    assert order.index("core.problem") < order.index("kernels.simt.family") < order.index("api")


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("cuda.bindings.driver", {"runtime.driver"}),
        ("cuda.bindings.nvrtc", {"runtime.compiler"}),
        ("cuda", {"runtime.driver", "runtime.compiler"}),
    ],
)
def test_one_file_alone_calls_the_driver_and_one_calls_nvrtc(library: str, homes: set[str]) -> None:
    users = {m for m, path in modules().items() if any(name.startswith(library) for name in imported_names(path))}
    assert users == homes


def observed(code: str) -> dict[str, list[str]]:
    """What happens to files, the environment and sys.modules while code runs after `import torch`."""
    script = f"""
import json, os, sys
import torch
before = set(sys.modules)
events, variables = [], set()
real = os._Environ.__getitem__

def get(self, name):
    variables.add(name)
    return real(self, name)

os._Environ.__getitem__ = get

def audit(event, arguments):
    changing = {{"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate",
                "tempfile.mkstemp", "tempfile.mkdtemp", "subprocess.Popen", "os.system", "os.putenv"}}
    if event in changing:
        events.append(f"{{event}} {{arguments[0]}}")
    if event == "open":
        path, mode, flags = arguments
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            events.append(f"write {{path}}")
        elif not str(path).endswith((".py", ".pyc")):
            events.append(f"read {{path}}")

sys.addaudithook(audit)
{code}
print(json.dumps({{"events": events, "variables": sorted(variables),
                  "modules": sorted(set(sys.modules) - before),
                  "cuda": [str(torch.cuda.is_initialized())]}}))
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_importing_touches_no_disk_no_environment_and_no_cuda() -> None:
    seen = observed("import tilesmith")
    assert "tilesmith.torch_ops.matmul" in seen["modules"]
    assert seen["events"] == []
    assert [name for name in seen["variables"] if name.startswith(("TILESMITH", "XDG", "HOME", "CUDA"))] == []
    assert [name for name in seen["modules"] if name.startswith("cuda")] == []
    assert seen["cuda"] == ["False"]


def test_the_watch_sees_what_it_watches_for() -> None:
    seen = observed("import os; os.environ.get('XDG_CACHE_HOME'); open('/dev/null', 'w'); open('/dev/null')")
    assert seen["events"] == ["write /dev/null", "read /dev/null"]
    assert seen["variables"] == ["XDG_CACHE_HOME"]


def test_neither_planning_nor_a_product_loads_sympy_the_cuda_bindings_or_dtensor() -> None:
    seen = observed("""
import tilesmith
from tilesmith.core.problem import Problem
from tilesmith.planner import choose
from tilesmith.core.device import named
a, b = torch.empty(2, 1, 30, 40, device="meta"), torch.empty(3, 40, 50, device="meta")
assert choose(Problem.of(a, b), named("h200")).problem.batch == (2, 3)
assert choose(Problem.of(torch.zeros(4), torch.zeros(4, 5)), named("t4")).problem.n == 5
assert tilesmith.matmul(torch.ones(2, 3), torch.ones(3, 4))[0, 0] == 3
""")
    assert "tilesmith.planner.choose" in seen["modules"]
    assert [name for name in seen["modules"] if unit(name) in ("sympy", "cuda")] == []
    assert "torch.distributed.tensor" not in seen["modules"]
    rates = sorted((PACKAGE / "planner/rates").glob("*.toml"))
    assert sorted(seen["events"]) == [f"read {path}" for path in rates]  # once each, when the first plan is made
    assert seen["cuda"] == ["False"]
