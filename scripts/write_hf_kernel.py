"""Writes Tilesmith as a kernel of Hugging Face's library `kernels`: `make hf-kernel`.

Such a kernel is a folder that is loaded from anywhere, under any name: its modules name each other relatively, import
nothing but the standard library and torch, and register their operators in a namespace of this build. The public names
are the package's, but for the emulator; the modules are those that they need.

    build.toml flake.nix CARD.md     what `kernel-builder` and the hub read
    torch-ext/tilesmith              the sources, from which `kernel-builder` makes the same again
    build/torch-cuda                 the kernel
"""

import ast
import base64
import hashlib
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

import tilesmith
from tilesmith.core.device import ARCHITECTURES
from tilesmith.version import VERSION

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = Path(tilesmith.__file__).parent
NAME: Final = PACKAGE.name
TEMPLATES: Final = Path(__file__).parent / "hf_kernel"
LEFT_OUT: Final = {"emulate", "EmulationError"}
DATA: Final = {"cuda": {".cuh"}, "kernels": {".cu", ".cuh"}, "planner": {".toml"}}
# torch's own builds for CUDA 13 bring these bindings. They are imported when a GPU is first used.
ALLOWED: Final = sys.stdlib_module_names | {"torch", "cuda"}
_NAMESPACE: Final = 'NAMESPACE: Final = "tilesmith"  # of the operators'
_UNIQUE: Final = 'NAMESPACE: Final = add_op_namespace_prefix("").removesuffix("::")'


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/hf-kernel"
    if folder.exists():
        shutil.rmtree(folder)
    write(folder)
    print(folder)


def write(folder: Path) -> None:
    """Writes the kernel into a folder that is empty, or does not exist."""
    sources = {**modules(), **data(), "__init__.py": init(), "layers.py": template("layers.py.in")}
    own = identity(sources)
    sources["_ops.py"] = template("_ops.py.in", id=own)
    compatible = {f"{NAME}/__init__.py": template("compatible.py.in", id=own)}
    capabilities = [re.sub(r"sm_(\d+)(\d)a?", r"\1.\2", arch) for arch in ARCHITECTURES]
    facts = {
        "version": VERSION.partition(".")[0],  # 0 is for what still changes, there as here
        "torch": requirement("torch"),
        "capabilities": ", ".join(capabilities),
    }
    write_all(folder / f"torch-ext/{NAME}", sources)
    write_all(folder / "build/torch-cuda", sources | compatible)
    metadata = {
        "name": NAME,
        "id": own,
        "version": int(facts["version"]),
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda", "archs": capabilities},
        "digest": {"algorithm": "sha256", "files": {k: sha256(v) for k, v in sorted((sources | compatible).items())}},
    }
    others = {
        "build/torch-cuda/metadata.json": json.dumps(metadata, indent=2) + "\n",
        "build.toml": template("build.toml", **facts | {"capabilities": json.dumps(capabilities)}),
        "flake.nix": template("flake.nix"),
        "CARD.md": template("CARD.md", **facts),
    }
    write_all(folder, others)


def identity(sources: Mapping[str, str]) -> str:
    """The namespace of a build, which its files give: no other build has it."""
    digest = hashlib.sha256("\0".join(part for item in sorted(sources.items()) for part in item).encode())
    return f"_{NAME}_cuda_{digest.hexdigest()[:10]}"


def public() -> dict[str, str]:
    """The module in which each public name is defined, by the name; of a name that is a module, the module itself."""
    found = {}
    for name in sorted(set(tilesmith.__all__) - LEFT_OUT - {"__version__"}):
        value = getattr(tilesmith, name)
        found[name] = value.__name__ if isinstance(value, ModuleType) else value.__module__
    return found


def init() -> str:
    """The package's `__init__.py`, with the public names."""
    lines = [
        '"""Tilesmith multiplies matrices on NVIDIA GPUs from PyTorch, with its own kernels."""',
        "",
        "import sys",
        "",
        "if sys.version_info < (3, 11):",
        '    raise ImportError("Tilesmith needs Python 3.11 or later")',
        "",
        "from . import layers",
    ]
    for name, module in public().items():
        where, _, last = module.removeprefix(NAME).rpartition(".")
        is_module = last == name and isinstance(getattr(tilesmith, name), ModuleType)
        lines.append(f"from {(where if is_module else f'{where}.{last}') or '.'} import {name}")
    lines += ["from .version import VERSION as __version__", ""]
    names = sorted({*public(), "layers", "__version__"})
    return "\n".join([*lines, "__all__ = [", *(f'    "{name}",' for name in names), "]", ""])


def modules() -> dict[str, str]:
    """The text of every module that the public names need, by its path, with relative imports."""
    wanted, found = [f"{NAME}.version", *public().values()], dict[str, str]()
    while wanted:
        path = file_of(wanted.pop())
        key = path.relative_to(PACKAGE).as_posix()
        if key == "__init__.py" or key in found:
            continue
        text = path.read_text()
        tree = ast.parse(text)
        wanted += needed(tree, path)
        # Folders around it are packages, and run before it.
        wanted += [".".join((NAME, *folder.parts)) for folder in Path(key).parents if folder.parts]
        found[key] = relative(text, tree, key)
    place = "core/package.py"
    if found[place].count(_NAMESPACE) != 1:
        raise ValueError(f"{place} does not say {_NAMESPACE!r}")
    own = found[place].replace(_NAMESPACE, _UNIQUE)
    found[place] = own.replace(
        "from typing import Final\n", "from typing import Final\n\nfrom .._ops import add_op_namespace_prefix\n"
    )
    return found


def needed(tree: ast.Module, path: Path) -> Iterator[str]:
    """The package's modules that one of them imports. Whatever else it imports must be allowed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == NAME:
            yield node.module
            folder = PACKAGE.joinpath(*node.module.split(".")[1:])
            yield from (f"{node.module}.{alias.name}" for alias in node.names if is_module(folder / alias.name))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or "."] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            if refused := [name for name in names if name.split(".")[0] not in ALLOWED]:
                raise ValueError(f"{path} imports {', '.join(refused)}, which a kernel of the hub must not")


def is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def file_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def relative(text: str, tree: ast.Module, key: str) -> str:
    """A module's text with relative imports of the package's own."""
    lines = text.splitlines(keepends=True)
    up = "." * len(Path(key).parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == NAME:
            line = lines[node.lineno - 1].encode()  # what comes before is counted in bytes
            before, own = line[: node.col_offset].decode(), line[node.col_offset :].decode()
            dotted = f"from {node.module} "
            if not own.startswith(dotted):
                raise ValueError(f"{key}:{node.lineno} is not written as {dotted!r}")
            lines[node.lineno - 1] = (
                f"{before}from {up}{node.module.removeprefix(NAME).removeprefix('.')} " + own.removeprefix(dotted)
            )
    return "".join(lines)


def data() -> dict[str, str]:
    """What the modules read."""
    files = (path for name in DATA for path in sorted((PACKAGE / name).rglob("*")) if path.suffix in DATA[name])
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in files}


def requirement(name: str) -> str:
    """The releases of a dependency that pyproject.toml allows."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (found,) = (each.removeprefix(name) for each in listed if re.split(r"[<>=]", each)[0] == name)
    return str(found)


def template(name: str, **values: str) -> str:
    text = (TEMPLATES / name).read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def write_all(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


if __name__ == "__main__":
    main()
