"""Programs whose shapes never come again: the tables level off, and what is used stays."""

import dataclasses
import importlib
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tilesmith.core import device as devices
from tilesmith.core.accuracy import numerics
from tilesmith.core.device import Device, named
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.core.recent import Recent
from tilesmith.override import routes
from tilesmith.override.settings import Settings
from tilesmith.planner import choose
from tilesmith.runtime import executor, graph_replay, loading, workspace
from tilesmith.runtime.graph_replay import GraphReplay

SHAPES = 20_000
stats = importlib.import_module("tilesmith.override.stats")  # the package has a function of this name


def plan_of(size: int = 1024) -> Plan:
    a, b = torch.empty(size, size, device="meta"), torch.empty(size, size, device="meta")
    return choose(Problem.of(a, b), named("h200"))


def grown_bytes(use: Callable[[int], None]) -> int:
    """By how much more memory the second half of all shapes needs at some time than the first."""
    tracemalloc.start()
    try:
        peaks = []
        for half in (range(SHAPES // 2), range(SHAPES // 2, SHAPES)):
            tracemalloc.reset_peak()
            for i in half:
                use(i)
            peaks.append(tracemalloc.get_traced_memory()[1])
        return peaks[1] - peaks[0]
    finally:
        tracemalloc.stop()


class TestRecent:
    def test_what_is_used_stays_and_the_rest_goes(self) -> None:
        table = Recent[int, str](10)
        for i in range(1000):
            table[i] = str(i)
            assert table.get(0) == "0"
            assert len(table) <= 20
        assert all(table.get(i) == str(i) for i in range(992, 1000))
        assert table.get(500) is None

    def test_never_all_at_once(self) -> None:
        """The last ones that were used are there at all times."""
        table = Recent[int, int](16)
        for i in range(1, 200):
            table[i] = i
            last = range(max(1, i - 15), i + 1)
            assert set(last) <= set(table)

    def test_what_goes_is_let_go(self) -> None:
        class Value:
            pass

        table = Recent[int, Value](2)
        first = Value()
        gone = weakref.ref(first)
        table[0] = first
        del first
        for i in range(1, 5):
            table[i] = Value()
        assert gone() is None

    def test_young_stays_the_same_dictionary(self) -> None:
        table = Recent[int, int](2)
        young = table.young
        for i in range(10):
            table[i] = i
        table.clear()
        assert table.young is young
        assert list(table) == []

    def test_threads(self) -> None:
        table = Recent[int, int](50)
        failed: list[BaseException] = []

        def use(seed: int) -> None:
            try:
                for i in range(5000):
                    key = (i * seed) % 300
                    found = table.get(key)
                    assert found in (None, key)
                    if found is None:
                        table[key] = key
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=use, args=(seed,)) for seed in (1, 7, 11, 13)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert len(table) <= 100


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that are made in no time, and launch nothing."""
    plan = plan_of()

    def planned(*_: Any) -> Plan:
        return dataclasses.replace(plan, name=str(object()))

    monkeypatch.setattr(executor, "planned", planned)
    monkeypatch.setattr(devices, "installed", lambda _: named("h200"))
    monkeypatch.setattr(loading, "loaded", lambda kernels, *_: ())
    monkeypatch.setattr(executor, "Launches", lambda *_: object())
    monkeypatch.setattr(executor.CompiledPlan, "_run", lambda self, a, b, out, added: out)
    executor._compiled.clear()


@pytest.mark.usefixtures("stand_in")
def test_compiled_plans_level_off() -> None:
    asked, out = numerics("fp32"), torch.empty(0, device="meta")

    def multiply(i: int) -> None:
        executor.multiply(torch.empty(i, 8, device="meta"), torch.empty(8, 8, device="meta"), asked, None, out)

    assert grown_bytes(multiply) < 500_000
    assert executor.COMPILED_PLANS <= len(executor._compiled) <= 2 * executor.COMPILED_PLANS
    last = {id(each) for each in executor._compiled.values()}
    multiply(SHAPES - 1)
    assert {id(each) for each in executor._compiled.values()} == last
    executor._compiled.clear()


class Executor:
    """Stands in for a GPU."""

    def gpu_of(self, tensor: torch.Tensor) -> Device:
        return named("h200")

    def compiled(self, plan: Plan, device_index: int) -> Any:
        return lambda *_: None


def test_routes_and_their_counts_level_off(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of()
    monkeypatch.setattr(routes, "choose", lambda *_: plan)
    monkeypatch.setattr(routes, "torch_is_faster", lambda _: None)
    monkeypatch.setattr(stats, "_counts", {})
    monkeypatch.setattr(stats, "_MAX_KINDS", 4000)
    known = routes.Routes(Settings.of(None, None, None, 0, False), Executor())  # type: ignore[arg-type]
    often = torch.empty(3, 8, device="meta"), torch.empty(8, 8, device="meta")

    def multiply(i: int) -> None:
        for a, b in (often, (torch.empty(i + 4, 8, device="meta"), often[1])):
            _, count = known.find("mm", a, b)
            count.calls += 1

    assert grown_bytes(multiply) < 500_000
    assert executor.COMPILED_PLANS <= len(known._known["mm"]) <= 2 * executor.COMPILED_PLANS
    assert len(stats._counts) <= 4000
    assert stats.stats().entries[0].calls == SHAPES  # what is called often is not forgotten


def test_workspaces_of_old_streams_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "allocate", lambda size: torch.empty(size, dtype=torch.uint8, device="meta"))
    workspace._kept.clear()
    often = workspace.borrow(0, 0)
    for stream in range(1, 1000):
        workspace.give_back(0, stream, workspace.borrow(0, stream))
        workspace.give_back(0, 0, often)
        assert workspace.borrow(0, 0) is often
    assert len(workspace._kept) <= 2 * workspace._STREAMS
    workspace._kept.clear()


class Graph:
    used = True

    def destroy(self) -> None:
        raise AssertionError("it goes with its plan")


def test_the_graphs_of_a_plan_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_replay, "_all", [])
    monkeypatch.setattr(graph_replay, "_MIN_UNUSED_SECONDS", 0.0)
    monkeypatch.setattr(graph_replay, "_MAX_GRAPHS", 4)
    gone: list[weakref.ref[Graph]] = []

    def record(buffers: tuple[int, ...]) -> Graph:
        graph = Graph()
        gone.append(weakref.ref(graph))
        return graph

    for plan in range(20):
        replay: GraphReplay[Graph] = GraphReplay()
        for _ in range(graph_replay._MIN_LAUNCHES):
            replay.note((plan,), record)
        assert len(replay.graphs) == 1
    assert len(gone) == 20
    assert [each() is None for each in gone] == [True] * 19 + [False]
    assert len(graph_replay._all) <= 4
