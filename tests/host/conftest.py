"""The host lane needs no GPU, and leaves the user's own cache alone."""

import os
from collections.abc import Iterator
from pathlib import Path

import machine_code
import pytest


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
    """Tests of the emulator share one cache: its kernels take seconds to compile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(os.environ[machine_code.SHARED_FOLDER]) / "cache"))
