"""`tilesmith doctor` on machines that lack one thing each, and on one that lacks nothing."""

import json
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from tilesmith.cli import machine, main
from tilesmith.core import device as devices
from tilesmith.core import nvml, packages
from tilesmith.core.errors import UnavailableError
from tilesmith.emulator import build as emulator
from tilesmith.planner import tuned
from tilesmith.runtime import archive, compiler, driver

HAS_NVIDIA_GPU = machine.has_nvidia_gpu  # which the machine of these tests replaces
Change = Callable[[pytest.MonkeyPatch, Path], None]


@pytest.fixture(autouse=True)
def whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with an H200 and everything that it needs."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(devices, "installed", lambda index: devices.named("h200"))
    monkeypatch.setattr(driver, "version", lambda: (13, 0))
    monkeypatch.setattr(compiler, "version", lambda: (13, 0))
    monkeypatch.setattr(packages, "version", lambda name: "13.0.3")
    monkeypatch.setattr(nvml, "driver_version", lambda: "580.1")
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "ubuntu"})
    monkeypatch.setattr(emulator, "compiler", lambda: SimpleNamespace(path="/usr/bin/g++"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    kernels(is_current=True)(monkeypatch, tmp_path)


def kernels(is_current: bool) -> Change:
    def change(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        class Found:
            path = folder / "sm_90a.archive"

            def __len__(self) -> int:
                return 2000

        Found.path.write_bytes(b"")
        found = Found()
        found.is_current = is_current  # type: ignore[attr-defined]
        monkeypatch.setattr(archive, "installed", lambda arch: [found] if arch == "sm_90a" else [])

    return change


def setting(of: Any, name: str, value: Any) -> Change:
    return lambda monkeypatch, folder: monkeypatch.setattr(of, name, value)


def raising(error: Exception) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


def gpu(found: devices.Device) -> Change:
    return setting(devices, "installed", lambda index: found)


def without(name: str) -> Change:
    def change(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.setattr(packages, "version", lambda asked: None if asked == name else "13.0.3")

    return change


def cache_of(mode: int) -> Change:
    def change(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        own = folder / "cache" / "tilesmith"
        own.mkdir(parents=True)
        own.chmod(mode)

    return change


def no_torch_gpu(visible: str | None) -> Change:
    def change(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return change


def doctor() -> tuple[int, dict[str, dict[str, Any]]]:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    shown = json.loads(result.stdout)
    assert shown["well"] is (result.exit_code == 0)
    return result.exit_code, {each["name"]: each for each in shown["checks"]}


def test_where_all_is_there_all_is_well() -> None:
    code, checks = doctor()
    assert code == 0
    assert list(checks) == [
        *("torch with CUDA", "NVIDIA driver", "supported GPU", "cuda-bindings", "NVRTC", "kernels for sm_90a"),
        *("rates of NVIDIA H200", "cache", "C++ compiler"),
    ]
    assert all(each["ok"] and each["mend"] is None for each in checks.values())
    assert CliRunner().invoke(main, ["doctor"]).stdout.endswith("All is well.\n")


VOLTA = replace(devices.named("t4"), name="Tesla V100", capability=(7, 0))
LACKS: list[tuple[str, Change, str, str | None]] = [
    ("torch with CUDA", setting(torch.version, "cuda", None), "built without", machine.TORCH),
    (
        "NVIDIA driver",
        setting(driver, "version", lambda: (12, 8)),
        "CUDA 12.8",
        "sudo apt-get install nvidia-driver-580",
    ),
    ("NVIDIA driver", setting(driver, "version", raising(UnavailableError("no"))), "not installed", "sudo apt-get"),
    ("supported GPU", gpu(VOLTA), "capability 7.0", None),
    ("supported GPU", no_torch_gpu(None), "finds no NVIDIA GPU", None),
    ("supported GPU", no_torch_gpu("7"), "CUDA_VISIBLE_DEVICES is '7'", "unset CUDA_VISIBLE_DEVICES"),
    ("cuda-bindings", without("cuda-bindings"), "not installed", 'pip install "cuda-bindings>=13,<14"'),
    (
        "NVRTC",
        setting(compiler, "version", raising(UnavailableError("no library. Install it"))),
        "no library.",
        'pip install --force-reinstall "cuda-bindings>=13,<14" "nvidia-cuda-nvrtc>=13,<14"',
    ),
    ("kernels for sm_90a", kernels(is_current=False), "other sources", "tilesmith build --gpu sm_90a"),
    ("kernels for sm_80", gpu(devices.named("a100")), "none are compiled ahead", "tilesmith build --gpu sm_80"),
    ("rates of NVIDIA A100", gpu(devices.named("a100")), "those of NVIDIA H200", "tilesmith tune --suite"),
    ("cache", cache_of(0o777), "others may write to it", "chmod go-w "),
    (
        "C++ compiler",
        setting(emulator, "compiler", raising(UnavailableError("no g++; install them"))),
        "no g++",
        "sudo apt-get install g++ binutils" if Path("/usr/bin/apt-get").exists() else None,
    ),
]


@pytest.mark.parametrize(("name", "change", "missing", "mend"), LACKS, ids=lambda each: str(each)[:24])
def test_what_is_missing_is_named_with_the_command_that_mends_it(
    name: str, change: Change, missing: str, mend: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    change(monkeypatch, tmp_path)
    code, checks = doctor()
    assert code == 1
    check = checks[name]
    assert (check["ok"], check["found"]) == (False, None)
    assert missing in check["missing"]
    assert (check["mend"] is None) is (mend is None)
    assert check["mend"] is None or check["mend"].startswith(mend)
    shown = " ".join(CliRunner().invoke(main, ["doctor"]).stdout.split())
    assert f"missing {name}: " in shown
    assert "missing." in shown


def test_a_machine_without_a_gpu_is_told_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(driver, "version", raising(UnavailableError("no")))
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)
    _, checks = doctor()
    for name in ("NVIDIA driver", "supported GPU"):
        assert "no NVIDIA GPU" in checks[name]["missing"]
        assert checks[name]["mend"] is None


def test_plans_that_were_tuned_here_stand_for_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    a100 = devices.named("a100")
    gpu(a100)(monkeypatch, Path())
    tuned.remember({"a problem": "a plan"}, a100)
    assert "tuned here" in doctor()[1]["rates of NVIDIA A100"]["found"]


@pytest.mark.parametrize(
    ("vendor", "kind", "found"), [("10de", "0302", True), ("10de", "0403", False), ("1002", "0300", False)]
)
def test_a_card_is_found_without_a_driver(vendor: str, kind: str, found: bool, tmp_path: Path) -> None:
    card = tmp_path / "0000:01:00.0"
    card.mkdir()
    (card / "vendor").write_text(f"0x{vendor}\n")
    (card / "class").write_text(f"0x{kind}00\n")
    assert HAS_NVIDIA_GPU(tmp_path) is found
