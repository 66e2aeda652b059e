"""The upstream lane: samples of PyTorch's own test databases under an override, on a GPU. `make test-upstream` runs it;
unless its marker is asked for, its files are not even read, since the databases take seconds to import."""

from collections import Counter
from collections.abc import Generator
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
def tally() -> Tally:
    """What a test does, which the summary adds up."""
    return Tally()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Gives the tally to the report of a test, which goes to the process that writes the summary."""
    report = yield
    tally = getattr(item, "funcargs", {}).get("tally")
    if report.when == "call" and tally is not None:
        report.user_properties.append(("upstream", {**vars(tally), "left": dict(tally.left)}))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was run, and what of it was ours."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.stats.get(kind, [])]
    properties = {each.nodeid: dict(each.user_properties) for each in reports}
    told = {name: each["upstream"] for name, each in properties.items() if "upstream" in each}
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
