"""`tilesmith build`, for one product."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from tilesmith.cli import INTERRUPTED, main
from tilesmith.core import device as devices
from tilesmith.core.device import named
from tilesmith.core.plan import Kernel
from tilesmith.core.problem import Problem
from tilesmith.kernels import catalogue
from tilesmith.planner import choose
from tilesmith.runtime import archive, cache, compiler, cubins, source

ARCH = "sm_90a"


PRODUCT = ("--shape", "1023x1023x1023", "--dtype", "bfloat16")  # one kernel realigns the operands, one multiplies


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def build(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["build", *PRODUCT, *arguments])


def expected() -> dict[Kernel, bytes]:
    a, b = (torch.empty(1023, 1023, dtype=torch.bfloat16, device="meta") for _ in "ab")
    launches = choose(Problem.of(a, b), named("h200")).launches
    return {launch.kernel: source.render(launch.kernel).encode() for launch in launches}


def stand_in(text: str, arch: str) -> bytes:
    return text.encode()


def test_a_seed_is_for_products_that_are_drawn() -> None:
    result = CliRunner().invoke(main, ["build", "--suite", "seeds", "--seed", "3"])
    assert result.exit_code == 2
    assert "--suite random" in result.output


def test_what_is_built_is_used_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in {kernel: source.render(kernel) for kernel in expected()}.values():
        cache.cubin(text, ARCH, stand_in)  # the cache has them already
    monkeypatch.setattr(compiler, "_compile", None)
    result = build()
    assert result.exit_code == 0, result.output
    assert "2 kernels for sm_90a" in result.stdout
    assert str(archive.users_file(ARCH)) in result.stdout
    for entry in cache.entries():
        entry.path.unlink()
    assert {kernel: cubins.cubin(kernel, ARCH) for kernel in expected()} == expected()


def test_a_build_writes_what_nvrtc_compiles_and_says_what(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "kernels.archive"
    result = build("--arch", ARCH, "--output", str(file), "--jobs", "2", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["path"], told["arch"], told["kernels"]) == (str(file), ARCH, len(expected()))
    assert told["bytes"] == file.stat().st_size
    built = archive.Archive(file)
    for kernel in expected():
        text = source.render(kernel)
        assert built.cubin(cache.content_key(text, ARCH)) == cache.cubin(text, ARCH, stand_in)
    again = tmp_path / "again.archive"
    assert build("--arch", ARCH, "--output", str(again)).exit_code == 0
    assert again.read_bytes() == file.read_bytes()


def test_a_build_of_no_product_has_every_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    some = list(expected())
    monkeypatch.setattr("tilesmith.cli.build_run.catalogue", lambda gpu: some if gpu.arch == ARCH else [])
    monkeypatch.setattr(compiler, "_compile", lambda text, arch: (text.encode(), ""))
    file = tmp_path / "kernels.archive"
    result = CliRunner().invoke(main, ["build", "--arch", ARCH, "--output", str(file), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["kernels"] == len(some)


@pytest.mark.parametrize("gpu", ["sm_86", "RTX 3090", "sm_103", "sm_120"])
def test_an_archive_is_built_for_any_gpu_from_turing_on(
    gpu: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiler, "_compile", lambda text, arch: (f"{arch} {text}".encode(), ""))
    file = tmp_path / "kernels.archive"
    result = CliRunner().invoke(main, ["build", "--shape", "64x64x64", "--gpu", gpu, "--output", str(file), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["arch"] == named(gpu).arch
    assert archive.Archive(file).arch == named(gpu).arch


def test_an_archive_has_the_kernels_of_the_gpu_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    some = list(expected())
    here = replace(named("b200"), name="another", capability=(10, 3))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(devices, "installed", lambda index: here)
    monkeypatch.setattr("tilesmith.cli.build_run.catalogue", lambda gpu: some if gpu == here else [])
    monkeypatch.setattr(compiler, "_compile", lambda text, arch: (text.encode(), ""))
    result = CliRunner().invoke(main, ["build", "--output", str(tmp_path / "kernels.archive"), "--json"])
    assert result.exit_code == 0, result.output
    assert (json.loads(result.stdout)["kernels"], json.loads(result.stdout)["arch"]) == (len(some), "sm_100")


OF_TENSOR_CORES = {
    *("mma/mma.cu", "mma/mma_large.cu", "mma/mma_fp32.cu"),
    *("fp32_split/split.cu", "realign.cu", "split_k_reduce.cu", "turn.cu"),
}

ON_TURING = {"mma/mma.cu", "mma/mma_large.cu", "realign.cu", "split_k_reduce.cu"}


@pytest.mark.parametrize(("gpu", "more"), [("t4", ON_TURING), ("sm_80", OF_TENSOR_CORES), ("rtx4090", OF_TENSOR_CORES)])
def test_what_is_built_for_other_gpus_has_no_kernel_of_hoppers(gpu: str, more: set[str]) -> None:
    found = {kernel.source.removeprefix("kernels/") for kernel in catalogue(named(gpu))}
    assert found == {"simt/simt.cu", *more}


def test_an_interrupted_build_leaves_no_archive(own_cache: Path, tmp_path: Path) -> None:
    script = f"""
import sys, time
from tilesmith.cli import main
from tilesmith.runtime import compiler
def slow(*_):
    print("compiling", flush=True)
    time.sleep(1)
    return b"cubin", ""
compiler._compile = slow
sys.argv[1:] = ["build", *{PRODUCT!r}, "--arch", "{ARCH}", "--jobs", "1"]
main()
"""
    building = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert building.stdout is not None and building.stderr is not None
    assert building.stdout.readline() == "compiling\n"
    time.sleep(0.2)
    building.send_signal(signal.SIGINT)
    time.sleep(0.1)
    building.send_signal(signal.SIGINT)  # someone is impatient
    assert building.wait(timeout=60) == INTERRUPTED
    assert building.stderr.read().strip() == "interrupted"
    building.stdout.close()
    building.stderr.close()
    assert {path.suffix for path in own_cache.iterdir()} <= {".cubin"}
