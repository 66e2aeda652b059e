"""Launches that come often are recorded: when, and for how long that is kept."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tilesmith.core.errors import DriverError
from tilesmith.runtime import graph_replay
from tilesmith.runtime.graph_replay import Buffers, GraphReplay


class Graph:
    """What stands for a recording."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self.used = True
        self.is_destroyed = False

    def destroy(self) -> None:
        assert not self.is_destroyed
        self.is_destroyed = True


@pytest.fixture(autouse=True)
def _nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(graph_replay, "_all", [])
    monkeypatch.setattr(graph_replay, "_MIN_UNUSED_SECONDS", 0.0)
    yield


def launch(of: GraphReplay[Graph], buffers: Buffers) -> Graph | None:
    """Does what a compiled plan does. Returns the graph that it used."""
    recording = of.graphs.pop(buffers, None)
    if recording is None:
        of.note(buffers, Graph)
        return None
    recording.used = True
    of.graphs[buffers] = recording
    return recording


def launch_often(of: GraphReplay[Graph], buffers: Buffers) -> None:
    for _ in range(graph_replay._MIN_LAUNCHES):
        assert launch(of, buffers) is None


def test_what_comes_often_is_recorded_once() -> None:
    launches: GraphReplay[Graph] = GraphReplay()
    launch_often(launches, (1, 2))
    recorded = launch(launches, (1, 2))
    assert recorded is not None and recorded.buffers == (1, 2)
    assert all(launch(launches, (1, 2)) is recorded for _ in range(100))
    assert launch(launches, (1, 3)) is None


def test_each_kind_of_launches_counts_for_itself() -> None:
    one, other = GraphReplay[Graph](), GraphReplay[Graph]()
    launch_often(one, (1,))
    assert launch(other, (1,)) is None
    assert not other.graphs


def test_what_never_comes_again_is_not_counted_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_replay, "_COUNTED_BUFFERS", 5)
    launches: GraphReplay[Graph] = GraphReplay()
    for i in range(1000):
        launch(launches, (i,))
    assert launches._times is not None and len(launches._times) <= 10 and not launches.graphs


def test_a_full_table_gives_up_what_is_not_used_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_replay, "_MAX_GRAPHS", 4)
    launches: GraphReplay[Graph] = GraphReplay()
    for i in range(4):
        launch_often(launches, (i,))
    kept = dict(launches.graphs)
    launch_often(launches, (4,))  # all were used since they were recorded: there is no room
    assert launches.graphs == kept

    assert launch(launches, (1,)) is kept[1,]
    launch_often(launches, (4,))
    assert set(launches.graphs) == {(1,), (4,)}
    assert [graph.is_destroyed for graph in kept.values()] == [True, False, True, True]


def test_more_than_there_is_room_for_leaves_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that goes round and round does not drive out what it uses next."""
    monkeypatch.setattr(graph_replay, "_MAX_GRAPHS", 4)
    monkeypatch.setattr(graph_replay, "_MIN_UNUSED_SECONDS", 1000.0)
    launches: GraphReplay[Graph] = GraphReplay()
    for _ in range(10 * graph_replay._MIN_LAUNCHES):
        for i in range(6):
            launch(launches, (i,))
    assert set(launches.graphs) == {(0,), (1,), (2,), (3,)}
    assert not any(graph.is_destroyed for graph in launches.graphs.values())


def test_what_cannot_be_recorded_is_launched_as_before() -> None:
    def no_memory(buffers: Buffers) -> Graph:
        attempts.append(buffers)
        raise DriverError("the CUDA driver answered CUDA_ERROR_OUT_OF_MEMORY")

    attempts: list[Buffers] = []
    launches: GraphReplay[Graph] = GraphReplay()
    for _ in range(10 * graph_replay._MIN_LAUNCHES):
        launches.note((1,), no_memory)
    assert attempts == [(1,)] and not launches.graphs


def test_what_is_in_use_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_replay, "_MAX_GRAPHS", 1)
    launches: GraphReplay[Graph] = GraphReplay()
    launch_often(launches, (1,))
    taken = launches.graphs.pop((1,))
    taken.used = False
    launch_often(launches, (2,))
    assert not taken.is_destroyed and not launches.graphs


def test_threads_have_a_recording_one_at_a_time() -> None:
    launches: GraphReplay[Graph] = GraphReplay()
    launch_often(launches, (1,))
    busy = threading.Lock()

    def use() -> None:
        for _ in range(2000):
            recording = launches.graphs.pop((1,), None)
            if recording is None:
                launches.note((1,), Graph)
                continue
            assert busy.acquire(blocking=False)
            recording.used = True
            busy.release()
            launches.graphs[1,] = recording

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(use) for _ in range(4)]:
            done.result()
    assert len(launches.graphs) == 1
