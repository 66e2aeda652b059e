"""The command line, on machines with a GPU and without: what the machine has is replaced where it matters."""

import dataclasses
import json
import math
import os
import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import tilesmith
from tilesmith.bench import suites, timing
from tilesmith.cli import _COMMANDS, demo_preview, machine, main
from tilesmith.core import device, packages
from tilesmith.core.errors import UnavailableError
from tilesmith.core.problem import Problem
from tilesmith.planner import choose
from tilesmith.runtime import archive, cache, compiler, cubins, driver

SEEDS = ["square", "large K", "transposed A", "tiny K", "irregular"]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run_json(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    return json.loads(result.stdout)


def fill(folder: Path, sizes: Mapping[str, int]) -> None:
    """Entries of the cache, each used a day after the one before it."""
    folder.mkdir(mode=0o700, parents=True)
    for day, (key, size) in enumerate(sizes.items()):
        path = folder / f"{key}.cubin"
        path.write_bytes(bytes(size))
        os.utime(path, (86400 * (day + 1),) * 2)


def raising(error: Exception) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


def one_line(text: str) -> str:
    """Text as it was before the terminal's width broke it."""
    return " ".join(text.split())


class TestGroup:
    def test_version(self) -> None:
        assert run("--version").output == f"tilesmith, version {tilesmith.__version__}\n"

    def test_help_of_each_command_opens_with_its_line_in_the_list(self) -> None:
        listed = one_line(run("--help").output)
        for name, line in _COMMANDS.items():
            assert f"{name} {line}" in listed
            assert line in one_line(run(name, "--help").output)

    def test_unknown_command(self) -> None:
        result = run("multiply")
        assert result.exit_code == 2
        assert "No such command 'multiply'" in result.stderr


class TestInfo:
    def test_versions_and_cache(self, own_cache: Path) -> None:
        fill(own_cache, {"first": 100, "second": 2000})
        found = run_json("info")
        assert found["tilesmith"] == tilesmith.__version__
        assert found["python"] == platform.python_version()
        assert found["torch"] == torch.__version__
        assert found["nvrtc"] == {"version": ".".join(map(str, compiler.version())), "missing": None}
        assert found["cache"] == {"directory": str(own_cache), "entries": 2, "bytes": 2100}

    def test_says_what_is_missing(self, monkeypatch: pytest.MonkeyPatch, no_gpu: None) -> None:
        monkeypatch.setattr(compiler, "version", raising(UnavailableError("no NVRTC [here]: install it")))
        monkeypatch.setattr(driver, "version", raising(UnavailableError("no driver: install one")))
        found = run_json("info")
        assert found["nvrtc"] == {"version": None, "missing": "no NVRTC [here]: install it"}
        assert found["driver"] == {"version": None, "missing": "no driver: install one"}
        assert found["gpus"] == []
        assert f"torch {torch.__version__}" in found["no_gpu"]
        result = run("info")
        assert result.exit_code == 0
        assert "missing: no NVRTC [here]: install it" in result.output
        assert "missing: no driver: install one" in result.output

    @pytest.mark.parametrize(
        ("cuda", "card", "driver_is_here", "visible", "advice"),
        [
            (None, True, True, None, "is built without CUDA. Install a build that has it with: pip install --force"),
            (None, False, False, None, "this machine has no NVIDIA GPU, and torch"),
            ("13.0", False, False, None, "this machine has no NVIDIA GPU"),
            ("13.0", True, False, None, "finds no NVIDIA GPU. It needs the driver."),
            ("13.0", True, True, None, "finds no NVIDIA GPU. Check that nvidia-smi lists one."),
            ("13.0", True, True, "", "finds no NVIDIA GPU. CUDA_VISIBLE_DEVICES is ''."),
        ],
    )
    @pytest.mark.usefixtures("no_gpu")
    def test_advice_fits_what_is_here(
        self,
        monkeypatch: pytest.MonkeyPatch,
        cuda: str | None,
        card: bool,
        driver_is_here: bool,
        visible: str | None,
        advice: str,
    ) -> None:
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: card)
        missing = raising(UnavailableError("no driver"))
        monkeypatch.setattr(driver, "version", (lambda: (13, 0)) if driver_is_here else missing)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert advice in run_json("info")["no_gpu"]

    def test_nothing_that_is_here_is_advised(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The bindings are installed, and the driver is not."""
        monkeypatch.setattr(driver, "_module", lambda: SimpleNamespace(cuDriverGetVersion=raising(RuntimeError("no"))))
        assert run_json("info")["driver"]["missing"].endswith("(no). Install an NVIDIA driver for CUDA 13.")

    def test_a_driver_or_bindings_for_another_cuda_are_said_to_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(driver, "version", lambda: (12, 8))
        monkeypatch.setattr(packages, "version", lambda name: "12.9.1")
        found = run_json("info")
        assert found["driver"]["missing"] == "too old: it is for CUDA 12.8. Install one for CUDA 13."
        assert found["cuda_bindings"]["missing"].endswith('with: pip install "cuda-bindings>=13,<14"')

    def test_an_archive_of_other_sources_is_built_again_for_its_own_architecture(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        path = tmp_path / "sm_80.archive"
        path.write_bytes(b"1234")

        class Stale:
            def __init__(self, is_current: bool) -> None:
                self.path, self.is_current = path, is_current

            def __len__(self) -> int:
                return 3

        monkeypatch.setattr(archive, "installed", lambda arch: [Stale(False)] if arch == "sm_80" else [])
        assert one_line(run("info").output).endswith("of other sources: run tilesmith build --gpu sm_80")
        monkeypatch.setattr(archive, "installed", lambda arch: [Stale(False), Stale(True)] if arch == "sm_80" else [])
        shown = one_line(run("info").output)
        assert "not used, since it is of other sources; another one is" in shown
        assert "tilesmith build" not in shown

    def test_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        volta = dataclasses.replace(device.named("t4"), name="Tesla V100", capability=(7, 0))
        gpus = [device.named("h200"), volta]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        monkeypatch.setattr(device, "installed", gpus.__getitem__)
        h200, v100 = run_json("info")["gpus"]
        assert h200 == {
            "index": 0,
            "name": "NVIDIA H200",
            "capability": "9.0",
            "arch": "sm_90a",
            "unsupported": None,
            "sm_count": 132,
            "shared_bytes_per_sm": 228 * 1024,
            "shared_bytes_per_block": 227 * 1024,
            "l2_bytes": 60 * 2**20,
        }
        assert v100["arch"] is None
        assert "compute capability 7.0, which Tilesmith does not support" in v100["unsupported"]
        shown = one_line(run("info").output)
        assert "NVIDIA H200 sm_90a 132 SMs shared memory 228 KiB an SM, 227 KiB a block L2 60 MiB" in shown
        assert "Tesla V100 unsupported: Tesla V100 has compute capability 7.0" in shown

    def test_torch_that_cannot_start_cuda(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", raising(RuntimeError("out of luck")))
        found = run_json("info")
        assert found["gpus"] == []
        assert found["no_gpu"] == "torch cannot use CUDA: out of luck"


class TestCache:
    def test_ls_shows_the_last_used_first(self, own_cache: Path) -> None:
        fill(own_cache, {"a" * 64: 512, "b" * 64: 2048})
        listing = run_json("cache", "ls")
        assert listing["directory"] == str(own_cache)
        assert listing["bytes"] == 2560
        assert [(entry["key"], entry["bytes"]) for entry in listing["entries"]] == [("b" * 64, 2048), ("a" * 64, 512)]
        lines = run("cache", "ls").output.splitlines()
        assert lines[0].split() == ["kernel", "tile", "for", "size", "compiled", "used", "key"]
        assert lines[1].split()[:5] == ["-", "-", "-", "2", "KiB"] and lines[1].endswith("b" * 12)
        assert lines[2].split()[:5] == ["-", "-", "-", "512", "B"] and lines[2].endswith("a" * 12)
        assert lines[3] == f"2 kernels, 2.5 KiB, in {own_cache}"

    def test_ls_says_of_which_kernel_an_entry_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiler, "_compile", lambda text, arch: (text.encode(), ""))
        a = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
        kernel = choose(Problem.of(a, a), device.named("h200")).product.kernel
        cubins.cubin(kernel, "sm_90a")
        cubins.cubin(kernel, "sm_90a")
        (entry,) = run_json("cache", "ls")["entries"]
        assert (entry["kernel"], entry["tile"], entry["arch"], entry["emulated"]) == (
            "gemm",
            kernel.tile,
            "sm_90a",
            False,
        )
        assert re.fullmatch(r"\d+x\d+", kernel.tile)
        line = run("cache", "ls").output.splitlines()[1]
        assert line.split()[:3] == ["gemm", kernel.tile, "sm_90a"]
        assert line.split()[5:7] == ["now", "now"]

    def test_ls_of_nothing(self, own_cache: Path) -> None:
        assert run_json("cache", "ls") == {"directory": str(own_cache), "bytes": 0, "entries": []}
        assert run("cache", "ls").output == f"0 kernels, 0 B, in {own_cache}\n"

    def test_clear(self, own_cache: Path) -> None:
        fill(own_cache, {"first": 1, "second": 2, "third": 3})
        assert run("cache", "clear").output == f"Removed 3 kernels from {own_cache}.\n"
        assert list(own_cache.iterdir()) == []
        assert run_json("cache", "clear") == {"directory": str(own_cache), "removed": 0, "left": 0}

    def test_clear_says_what_it_could_not_remove(self, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
        fill(own_cache, {"first": 1})
        monkeypatch.setattr(cache, "clear", lambda: 0)
        result = run("cache", "clear")
        assert result.exit_code == 1
        assert result.stderr.startswith("1 kernel could not be removed")


class TestDemoWithoutGpu:
    pytestmark = pytest.mark.usefixtures("no_gpu", "emulator_cache")

    def test_plans_and_compiles_for_an_h200(self) -> None:
        shown = run_json("demo")
        assert (shown["gpu"], shown["planned_for"], shown["arch"]) == (None, "NVIDIA H200", "sm_90a")
        assert [plan["product"] for plan in shown["plans"]] == SEEDS
        assert [plan["sizes"] for plan in shown["plans"]] == [[p.m, p.k, p.n] for p in suites.load("seeds")]
        for plan in shown["plans"]:
            assert plan["plan"].startswith("hopper ")
            assert 0.9 * 132 <= math.prod(plan["grid"]) <= 132
            assert 32 < plan["registers"] <= 255
            assert plan["spill_bytes"] == 0
            # Between what neither three products on tensor cores nor memory can beat, and what no float32 kernel on
            # CUDA cores can.
            m, k, n = plan["sizes"]
            tensor_ms = 3 * m * k * n / (132 * 2048 * 1.98e9) * 1e3
            memory_ms = (m * k + k * n + m * n) * 4 / 4.8e12 * 1e3
            cuda_ms = m * k * n / (132 * 128 * 1.98e9) * 1e3
            assert max(tensor_ms, memory_ms) < plan["estimated_ms"] < cuda_ms

        assert [each["product"] for each in shown["emulated"]] == SEEDS
        for each, plan in zip(shown["emulated"], shown["plans"], strict=True):
            assert max(each["sizes"]) <= 256
            assert [size % 2 for size in each["sizes"]] == [size % 2 for size in plan["sizes"]]
            assert each["plan"] == plan["plan"]
            assert 0 < each["error"]["norm"] < 3e-7
            assert 0 < each["torch_error"]["norm"] < 3e-7
            assert each["accurate"]
        assert shown["accurate"]
        assert shown["not_measured"] == ["the speed of the kernels"]

    def test_says_what_it_could_not_measure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(suites, "load", lambda name: (suites.Product("small", 64, 32, 48, why="quick"),))
        result = run("demo")
        assert result.exit_code == 0
        shown = one_line(result.stdout)
        assert result.stdout.startswith("torch finds no GPU here: ")
        assert shown.count("64x32x48") == 2
        assert "is not a measurement" in shown
        end = shown.index("Not measured here, for want of a GPU: the speed of the kernels.")
        assert "run this command where there is an NVIDIA GPU" in shown[end:]

    def test_wrong_arithmetic_exits_with_1(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(suites, "load", lambda name: (suites.Product("small", 64, 32, 48, why="quick"),))
        monkeypatch.setattr(demo_preview, "run", lambda plan, a, b: (a @ b) * (1 + 1e-5))
        result = run("demo")
        assert result.exit_code == 1
        assert "NOT ACCURATE: small." in result.stdout

    def test_without_nvrtc_exits_with_2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiler, "version", raising(UnavailableError("NVRTC is not here: install it")))
        result = run("demo")
        assert result.exit_code == 2
        assert result.stderr == "Error: NVRTC is not here: install it\n"


class TestDemoWithGpu:
    """The GPU's side of the command, with small products on the CPU in place of large ones on a GPU."""

    @pytest.fixture(autouse=True)
    def pretend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        operands = suites.Product.operands
        monkeypatch.setattr(suites.Product, "operands", lambda self, _: operands(self.reduced(48), "cpu"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(device, "installed", lambda index: device.named("h200"))

        def interleaved(competitors: Mapping[str, Callable[[], object]]) -> dict[str, timing.Timing]:
            assert [torch.is_tensor(call()) for call in competitors.values()] == [True, True]
            return {"ours": timing.Timing((2.0,)), "torch": timing.Timing((3.0,))}

        monkeypatch.setattr(timing, "interleaved", interleaved)

    def test_measures_all_five(self) -> None:
        before = torch.backends.cuda.matmul.fp32_precision
        shown = run_json("demo")
        assert torch.backends.cuda.matmul.fp32_precision == before
        assert (shown["gpu"], shown["arch"], shown["accurate"]) == ("NVIDIA H200", "sm_90a", True)
        assert [each["product"] for each in shown["products"]] == SEEDS
        assert shown["not_measured"] == []
        square = shown["products"][0]
        assert square["speedup"] == 1.5
        assert square["tflops"] == pytest.approx(2 * 48**3 / 2e-3 * 1e-12)
        assert square["ours_error"] == square["torch_error"]

    def test_table(self) -> None:
        result = run("demo")
        assert result.exit_code == 0
        shown = one_line(result.stdout)
        assert "irregular fp64_mma 16x16x128 2.000 3.000 1.50 0.0" in shown
        assert shown.endswith("Accurate: no element is off by more than 2 sqrt(K) roundings of float32.")

    def test_an_element_that_is_not_written_exits_with_1(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def all_but_one(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            if out is None:
                return a @ b
            out[1:] = a[1:] @ b
            return out

        monkeypatch.setattr(tilesmith, "matmul", all_but_one)
        result = run("demo")
        assert result.exit_code == 1
        assert "NOT ACCURATE: square, large K, transposed A, tiny K, irregular." in one_line(result.stdout)
        result = run("demo", "--json")
        assert result.exit_code == 1
        assert json.loads(result.stdout)["products"][0]["ours_error"] == {"comp": None, "norm": None}

    def test_too_little_memory_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            if a.stride(0) == 1:  # transposed A
                raise torch.OutOfMemoryError
            return torch.matmul(a, b, out=out)

        monkeypatch.setattr(tilesmith, "matmul", matmul)
        result = run("demo")
        assert result.exit_code == 0
        about = "transposed A (2048x8192x4096 a transposed): it needs more memory than the GPU has free."
        assert f"Not measured: {about}" in one_line(result.stdout)

    def test_unsupported_gpu_exits_with_2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        volta = dataclasses.replace(device.named("t4"), name="Tesla V100", capability=(7, 0))
        monkeypatch.setattr(device, "installed", lambda index: volta)
        result = run("demo")
        assert result.exit_code == 2
        assert "Error: Tesla V100 has compute capability 7.0" in result.stderr
