"""The upstream lane: samples of PyTorch's own test databases under an override, on a GPU. `make test-upstream` runs it;
unless its marker is asked for, its files are not even read, since the databases take seconds to import."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from upstream_judge import Tally

_HERE: Final = Path(__file__).parent
_MAX_NAMES: Final = 12  # of a kind that the summary has


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if "upstream" not in config.option.markexpr else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.upstream)


@pytest.fixture(autouse=True, scope="session")
def gpu() -> None:
    assert torch.cuda.is_available(), "the upstream lane needs an NVIDIA GPU"


@pytest.fixture
def tally(record_property: Any) -> Iterator[Tally]:
    """What a test did. It is sent to the summary, from whichever process it ran in."""
    tally = Tally()
    yield tally
    record_property("upstream", {**asdict(tally), "left": dict(tally.left)})


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was run, and what of it was ours."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.stats.get(kind, [])]
    told = {each.nodeid: dict(each.user_properties)["upstream"] for each in reports if each.user_properties}
    if not told:
        return
    write = terminalreporter.write_line
    terminalreporter.section("PyTorch's own samples")
    entries = {name.split("[")[-1].rsplit("-", 1)[0].rstrip("]") for name, each in told.items() if each["reached"]}

    def total(field: str) -> int:
        return sum(each[field] for each in told.values())

    write(f"{len(entries)} operators and modules reach a product: {' '.join(sorted(entries))}")
    write(f"{total('reached')} of {total('samples')} samples reach one; the databases have {total('drawn')}")
    write(f"{total('pieces')} results and gradients compared, {total('with_torch_alone')} of them with torch's alone")
    write(f"{total('raised')} samples that torch raises for, and so do we; {total('errors')} wrong calls")
    write(f"{total('ours')} products by Tilesmith; left to torch:")
    left = sum((Counter(each["left"]) for each in told.values()), Counter[str]())
    for reason, calls in left.most_common():
        write(f"    {calls} {reason}")
    undrawn = [name for each in told.values() for name in each["undrawn"]]
    write(f"{len(undrawn)} of which torch's database draws nothing here:")
    for name in undrawn[:_MAX_NAMES]:
        write(f"    {name}")
    if len(undrawn) > _MAX_NAMES:
        write(f"    and {len(undrawn) - _MAX_NAMES} more")
