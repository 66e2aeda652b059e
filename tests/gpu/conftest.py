"""Every test in this folder needs an NVIDIA GPU: run them with `pytest tests -m gpu`, and those under compute-sanitizer
with `pytest tests -m sanitizer`."""

import random
import zlib
from pathlib import Path

import numpy
import pytest
import torch

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests of this folder. Those of the sanitizer run only if they are asked for by their marker."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
    if "sanitizer" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("sanitizer")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def no_graph_dies_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph that an earlier test left in a cycle of references, and that Python's collector destroys during a
    capture, breaks the capture, and every test after it. So torch collects before each."""
    monkeypatch.setattr(torch.compiler.config, "force_cudagraph_gc", True)


@pytest.fixture(autouse=True)
def own_seed(request: pytest.FixtureRequest) -> None:
    """Every test draws the same values in each run, alone or among others: its name is the seed."""
    seed = zlib.crc32(request.node.nodeid.encode())
    torch.manual_seed(seed)  # of the CPU and of all GPUs
    random.seed(seed)
    numpy.random.seed(seed)
