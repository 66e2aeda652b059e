"""`make hf-kernel`: the package as a kernel of Hugging Face's hub is whole, and is loaded without the package."""

import ast
import base64
import hashlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import tilesmith
from tilesmith.runtime import cache

SCRIPTS: Final = Path(__file__).parents[2] / "scripts"

# What a process does that has neither the package nor what it needs besides torch.
LOADED: Final = """
import importlib, importlib.util, json, sys
from pathlib import Path

for name in ("tilesmith", "click", "rich", "numpy"):
    sys.modules[name] = None
import torch

def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]

variant = Path(sys.argv[1])
identity = json.loads((variant / "metadata.json").read_text())["id"]
kernel = load(identity, variant / "__init__.py")
a = torch.arange(6.0).reshape(2, 3).requires_grad_()
b = torch.arange(12.0).reshape(3, 4)
product = kernel.matmul(a, b)
product.sum().backward()

large = torch.empty(4096, 4096, device="meta")
layer = torch.nn.Linear(3, 4)
like_torchs = torch.equal(kernel.layers.Linear.forward(layer, a), layer(a))
with kernel.override():
    overridden = (a @ b).tolist()

registered = lambda: [name for name in torch._C._dispatch_get_all_op_names() if name.endswith("::matmul_out")]
alone = registered()
old = load("old", variant / "tilesmith/__init__.py")
del sys.modules["tilesmith"]
import tilesmith

print(json.dumps({
    "product": product.tolist(),
    "gradient": a.grad.tolist(),
    "layer": like_torchs,
    "overridden": overridden,
    "explained": str(kernel.explain(large, large, gpu="h200")),
    "operators": alone,
    "beside the package": sorted(registered()),
    "still works": tilesmith.matmul(a, b).tolist(),
    "headers": importlib.import_module(f"{identity}.runtime.cache").sources_digest(),
    "names": kernel.__all__,
    "missing": [name for name in kernel.__all__ if not hasattr(kernel, name)],
    "callable": [name for name in kernel.__all__ if callable(getattr(kernel, name))],
    "old": old.matmul is kernel.matmul and old.__all__ == kernel.__all__,
}))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf") / "kernel"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(SCRIPTS)
        import write_hf_kernel

        write_hf_kernel.write(folder)
    return folder


def metadata(written: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((written / "build/torch-cuda/metadata.json").read_text())
    return found


@pytest.mark.xdist_group("hf_kernel")
def test_it_is_loaded_from_disk_where_there_is_only_torch(written: Path) -> None:
    package = Path(tilesmith.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-B", "-c", LOADED, str(written / "build/torch-cuda")],
        env=os.environ | {"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    identity = metadata(written)["id"]
    assert found["product"] == found["still works"] == found["overridden"] == [[20, 23, 26, 29], [56, 68, 80, 92]]
    assert found["gradient"] == [[6, 22, 38], [6, 22, 38]]
    assert found["layer"] and found["old"]
    large = torch.empty(4096, 4096, device="meta")
    assert found["explained"] == str(tilesmith.explain(large, large, gpu="h200"))
    assert found["operators"] == [f"{identity}::matmul_out"]
    assert found["beside the package"] == [f"{identity}::matmul_out", "tilesmith::matmul_out"]
    assert found["headers"] == cache.sources_digest()
    assert set(found["names"]) == set(tilesmith.__all__) - {"emulate", "EmulationError"} | {"layers"}
    assert found["missing"] == []
    assert set(found["names"]) - set(found["callable"]) == {"__version__", "distributed", "layers", "nn"}


def imports(path: Path) -> Iterator[str]:
    """What a file imports by absolute names, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


@pytest.mark.xdist_group("hf_kernel")
def test_its_modules_import_the_standard_library_torch_and_each_other(written: Path) -> None:
    files = list(written.rglob("*.py"))
    assert len(files) > 100
    others = {
        path.relative_to(written / "build/torch-cuda").as_posix(): name
        for path in (written / "build").rglob("*.py")
        for name in imports(path)
        if name.split(".")[0] not in {"torch", *sys.stdlib_module_names}
    }
    assert others == {"runtime/compiler.py": "cuda.bindings", "runtime/driver.py": "cuda.bindings"}
    assert not {"cli", "bench", "kernelbench", "emulator"} & {path.name for path in written.glob("build/torch-cuda/*")}


@pytest.mark.xdist_group("hf_kernel")
def test_the_metadata_have_the_digest_of_every_file_and_agree_with_the_build_file(written: Path) -> None:
    variant, found = written / "build/torch-cuda", metadata(written)
    files = {path.relative_to(variant).as_posix(): path for path in variant.rglob("*") if path.is_file()}
    del files["metadata.json"]
    digests = {name: base64.b64encode(hashlib.sha256(p.read_bytes()).digest()).decode() for name, p in files.items()}
    assert found["digest"] == {"algorithm": "sha256", "files": digests}
    build = tomllib.loads((written / "build.toml").read_text())
    general = build["general"]
    assert (general["name"], general["version"], general["license"]) == ("tilesmith", found["version"], "Apache-2.0")
    assert found["backend"] == {"type": general["backends"][0], "archs": build["torch-noarch"]["cuda-capabilities"]}
    suffixes = {path.suffix.removeprefix(".") for path in (written / "torch-ext").rglob("*") if path.is_file()}
    assert suffixes == set(build["torch-noarch"]["pyext"])
    sources = {path.relative_to(written / "torch-ext/tilesmith") for path in (written / "torch-ext").rglob("*.*")}
    assert {Path(name) for name in files} == sources | {Path("tilesmith/__init__.py")}
    assert "@" not in (written / "CARD.md").read_text().replace("a @ b", "")


def test_another_text_or_place_has_another_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    from write_hf_kernel import identity

    texts = ({"a.py": "1", "b.py": "2"}, {"a.py": "1", "b.py": "3"}, {"a.py": "1", "c.py": "2"}, {"a.py": "1"})
    assert len({identity(each) for each in texts}) == len(texts)
    assert identity({"b.py": "2", "a.py": "1"}) == identity(texts[0])
    assert identity(texts[0]).startswith("_tilesmith_cuda_") and identity(texts[0]).isidentifier()


@pytest.mark.parametrize("statement", ["import numpy", "from rich.console import Console"])
def test_what_must_not_be_imported_is_refused(statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    import write_hf_kernel

    with pytest.raises(ValueError, match=r"api.py imports .*, which a kernel of the hub must not"):
        list(write_hf_kernel.needed(ast.parse(statement), Path("api.py")))
