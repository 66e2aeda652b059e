"""Processes that are replaced: without torch, which takes seconds to import in each."""

import os
from collections.abc import Callable

from crew import Crew


def doubling() -> Callable[[int], tuple[int, bool]]:
    def answer_for(number: int) -> tuple[int, bool]:
        if number == 3:
            os._exit(1)
        return 2 * number, number == 5

    return answer_for


def missing(number: int, reason: str) -> int:
    assert reason == "the process died"
    return -number


def test_a_crew_goes_on_when_a_process_dies_or_retires() -> None:
    found = list(Crew(doubling, missing, jobs=2).answers([[1, 2, 3, 4], [5, 6], [7]], seconds=60))
    assert sorted(found) == [-3, 2, 4, 8, 10, 12, 14]
    assert list(Crew(doubling, missing, jobs=2).answers([[1]], seconds=0)) == []
