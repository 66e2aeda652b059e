"""How many threads are at work at the same time."""

import os
from pathlib import Path

import pytest

from tilesmith.core.threads import cores

ALLOWED = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ALLOWED),
        ({"cpu.max": "max 100000\n"}, ALLOWED),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": f"{1000 * ALLOWED}00000 100000\n"}, ALLOWED),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, ALLOWED),
        ({"cpu/cpu.cfs_quota_us": "90000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu.max": "nonsense"}, ALLOWED),
    ],
    ids=str,
)
def test_a_container_has_no_more_cores_than_it_has_the_time_of(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores(tmp_path) == expected
