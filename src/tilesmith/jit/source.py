"""The translation unit of a kernel: its constants by name, then the source file of the package."""

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from tilesmith.plan import Constant, Kernel


def render(kernel: Kernel) -> str:
    """The text that NVRTC compiles. Equal kernels give equal text."""
    return "\n".join(
        [
            '#include "element.cuh"',
            "namespace plan {",
            *(_definition(name, value) for name, value in kernel.constants),
            "}  // namespace plan",
            f'#include "{kernel.source}"',
            "",
        ]
    )


@cache
def headers() -> dict[str, str]:
    """Every file under the package's cuda folder, by the name that `#include` uses."""
    found: dict[str, str] = {}

    def walk(folder: Traversable, prefix: str) -> None:
        for entry in sorted(folder.iterdir(), key=lambda e: e.name):
            if entry.is_dir():
                walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith((".cuh", ".cu")):
                found[prefix + entry.name] = entry.read_text()

    walk(resources.files("tilesmith") / "cuda", "")
    return found


def _definition(name: str, value: Constant) -> str:
    if isinstance(value, str):
        return f"using {name} = {value};"
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    return f"constexpr int {name} = {value};"
