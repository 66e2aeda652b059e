"""Source lines of addresses in a kernel's library, by the tools of the system."""

import shutil
import subprocess
import tempfile


def line_at(library: bytes, address: int) -> str:
    """For example "at kernels/simt/simt.cu:130", from the kernel's own files."""
    places = [place for place in _inlined(library, address) if place.startswith(("cuda/", "kernels/"))]
    return f"at {', called from '.join(places)}" if places else "at a line that is not known"


def _inlined(library: bytes, address: int) -> list[str]:
    """The innermost line first, then those that it is inlined into."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line") or shutil.which("llvm-symbolizer")
    if tool is None:
        return []
    symbolizer = ("--output-style=GNU", "--functions=none") if tool.endswith("symbolizer") else ()
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        done = subprocess.run([tool, "-e", file.name, "-i", *symbolizer, hex(address)], capture_output=True, text=True)
    places = []
    for line in done.stdout.splitlines():
        name, _, number = line.partition(" ")[0].rpartition(":")
        cut = max(name.rfind(folder) for folder in ("cuda/", "kernels/", "emulator/"))
        places.append(f"{name[cut if cut >= 0 else 0 :]}:{number}")
    return places
