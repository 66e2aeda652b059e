"""The host lane needs no GPU, and leaves the user's own cache alone."""

import importlib.metadata
import os
import re
from collections.abc import Iterator
from pathlib import Path

import machine_code
import pytest
import torch


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own cache directory, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tilesmith"


@pytest.fixture(autouse=True, scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """The processes of a run share what they make of kernels. The next run starts anew."""
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "shared"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv(machine_code.SHARED_FOLDER, str(folder))
        yield


@pytest.fixture
def emulator_cache(shared_folder: None, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the emulator share one cache: its kernels take seconds to compile. It may be one that several runs
    share."""
    of_run = Path(os.environ[machine_code.SHARED_FOLDER]) / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", os.environ.get("TILESMITH_TESTS_EMULATOR_CACHE", str(of_run)))


@pytest.fixture
def fresh_dynamo() -> None:
    """What `torch.compile` made for other tests is forgotten."""
    torch._dynamo.reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what reads machine code or asks for spills, by its name: a lane of its own, `make test-sass`."""
    for item in items:
        reads = "sass" in getattr(item, "fixturenames", ()) or re.search(r"spill|machine_code|sass", item.nodeid)
        if reads and "host" in item.path.parts:
            item.add_marker("sass")


@pytest.fixture(autouse=True)
def pinned_nvrtc(request: pytest.FixtureRequest) -> None:
    """What ptxas makes of a kernel was written down for one release of it, which the development requirements pin."""
    if request.node.get_closest_marker("sass") is not None:
        pinned = (Path(__file__).parents[2] / "requirements-dev.txt").read_text()
        installed = importlib.metadata.version("nvidia-cuda-nvrtc")
        assert f"nvidia-cuda-nvrtc=={installed}\n" in pinned, f"these tests are for another NVRTC than {installed}"
