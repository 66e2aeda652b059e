"""Makes the sdist and the wheel, checks them, and tries the wheel where nothing else is: `make test-package`.

It works on a copy of the tree, so that an archive of all kernels that was built there stays. The wheel has the kernels
of one product. What is printed at the end is how long a user waits whose downloads are done.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
KERNELS: Final = "--shape 16x16x16"
# From a wheel to the first product in the emulator. A machine that is busy takes longer, but no more of its processors.
MAX_CPU_SECONDS: Final = 20.0
FIRST_PRODUCT: Final = """
import torch, tilesmith
a, b = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(3, 4)
with tilesmith.emulate("h200"):
    assert torch.equal(tilesmith.matmul(a, b), a @ b)
print(tilesmith.__file__)
"""


def main() -> None:
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="tilesmith-package-") as name:
        folder = Path(name)
        start = Clocks.now()
        wheel = make_distributions(folder / "tree")
        made = Clocks.now()
        environment = folder / "venv"
        run(sys.executable, "-m", "venv", str(environment))
        python = environment / "bin" / "python"
        # What the wheel needs comes by its own list, but as it is pinned here.
        pins = "--constraint", str(ROOT / "requirements-dev.txt")
        run(python, "-m", "pip", "install", "--quiet", "--no-compile", *pins, str(wheel))
        run(python, "-c", "import torch")  # pip would compile all of it
        downloaded = Clocks.now()
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", str(wheel))
        outside = folder / "elsewhere"
        outside.mkdir()
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        where = run(python, "-c", FIRST_PRODUCT, cwd=outside).strip()
        multiplied = Clocks.now()
        if not Path(where).is_relative_to(environment):
            raise SystemExit(f"the product was made by {where}, and not by the wheel")
        try_commands(environment / "bin" / "tilesmith", outside)
    print(f"sdist and wheel made and checked: {made.since(start)}")
    print(f"what the wheel needs, downloaded and installed: {downloaded.since(made)}")
    waited = multiplied.since(downloaded)
    print(f"from the wheel to the first emulated product: {waited}; the processors have {MAX_CPU_SECONDS:g} s at most")
    if waited.cpu > MAX_CPU_SECONDS:
        raise SystemExit(1)


def make_distributions(tree: Path) -> Path:
    """Makes both in a copy of the tree, and checks them; returns the wheel."""
    tracked = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for path in (path for path in tracked if (ROOT / path).is_file()):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, tree / path)
    venv = f"VENV={sys.prefix}", f"--assume-old={sys.prefix}/ready"  # this Python's, which is ready
    run("make", "wheel", "sdist", f"KERNELS={KERNELS}", *venv, cwd=tree)
    run("make", "check-dist", f"DIST={tree}/dist", cwd=ROOT)
    (wheel,) = (tree / "dist").glob("*.whl")
    return wheel


def try_commands(tilesmith: Path, outside: Path) -> None:
    """The command as it is installed, and the archive that came with it."""
    print(run(tilesmith, "--version", cwd=outside).strip())
    plan = json.loads(run(tilesmith, "explain", "4096x4096x4096", "--json", cwd=outside))["plan"]
    print(f"tilesmith explain 4096x4096x4096: {plan}")
    archives = json.loads(run(tilesmith, "info", "--json", cwd=outside))["archives"]
    if [archive["is_current"] for archive in archives] != [True]:
        raise SystemExit(f"the wheel did not bring the archive of its kernels: {archives}")
    print(f"kernels compiled ahead: {archives[0]['kernels']} for {archives[0]['arch']}")


class Clocks(NamedTuple):
    """Seconds of the clock, and of all processors for what `run` started."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> "Clocks":
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(time.monotonic(), used.ru_utime + used.ru_stime)

    def since(self, start: "Clocks") -> "Clocks":
        return Clocks(self.wall - start.wall, self.cpu - start.cpu)

    def __str__(self) -> str:
        return f"{self.wall:.1f} s, {self.cpu:.1f} s of the processors"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """What a command prints on stdout. If it fails, all that it said is shown."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
