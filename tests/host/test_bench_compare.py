"""Two runs held against each other: what changed is found, and nothing else."""

from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
from made_up_results import made_up

from tilesmith.bench.compare import compare
from tilesmith.bench.results import OURS, TORCH, Entry, Results


def scaled(results: Results, factor: Callable[[Entry, str], float]) -> Results:
    """The run with the times of each entry's competitors multiplied."""

    def entry(old: Entry) -> Entry:
        competitors = {
            name: replace(each, samples_ms=tuple(x * factor(old, name) for x in each.samples_ms))
            for name, each in old.competitors.items()
        }
        return replace(old, competitors=competitors)

    return replace(results, entries=tuple(map(entry, results.entries)))


def with_versions(results: Results, **versions: str) -> Results:
    environment = results.environment
    return replace(results, environment=replace(environment, versions={**environment.versions, **versions}))


@pytest.mark.parametrize("rounds", [10, 20, 50])
def test_two_runs_of_the_same_thing_do_not_differ(rounds: int) -> None:
    for seed in range(60):
        found = compare(made_up(2 * seed, rounds=rounds), made_up(2 * seed + 1, rounds=rounds))
        assert {each.change for each in found.compared} == {"same"}
        assert not found.regression and found.warnings == () and found.differences == ()


@pytest.mark.parametrize("which", range(len(made_up().entries)))
def test_a_slowdown_of_5_percent_of_one_product_is_found_and_so_is_its_end(which: int) -> None:
    old, new = made_up(2 * which), made_up(2 * which + 1)
    planted = new.entries[which]
    slowed = scaled(new, lambda entry, name: 1.05 if entry is planted and name == OURS else 1.0)

    found = compare(old, slowed)
    assert found.regression
    changed = [(each.suite, each.change) for each in found.compared if each.change != "same"]
    assert changed == [(planted.suite, "slower")]
    assert found.compared[which].time == pytest.approx(1.05, abs=0.015)

    back = compare(slowed, old)
    assert not back.regression
    assert [i for i, each in enumerate(back.compared) if each.change == "faster"] == [which]


@pytest.mark.parametrize("card", [0.96, 1.04, 1.3])
def test_another_card_is_not_taken_for_a_change_of_ours(card: float) -> None:
    found = compare(made_up(1), scaled(made_up(2), lambda entry, name: card))
    assert {each.change for each in found.compared} == {"same"}
    assert "torch's own times changed by" in found.describe()
    assert all(drift == pytest.approx(card, rel=0.01) for drift in found.drifts.values())


def test_a_slowdown_on_a_slower_card_is_found() -> None:
    slowed = scaled(made_up(2), lambda entry, name: 1.05 if entry.name == "16 rows" and name == OURS else 1)
    found = compare(made_up(1), scaled(slowed, lambda entry, name: 1.03))
    assert [each.product for each in found.compared if each.change == "slower"] == ["16x8192x8192 bfloat16"]


def test_slower_memory_is_told_from_slower_clocks() -> None:
    slower_memory = scaled(made_up(2), lambda entry, name: 1.05 if entry.bound == "memory" else 1.0)
    found = compare(made_up(1), slower_memory)
    assert not found.regression
    assert found.drifts["bound by memory"] == pytest.approx(1.05, abs=0.01)
    assert found.drifts["bound by compute"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_torch_alone_becoming_faster_or_slower_is_no_change_of_ours(factor: float) -> None:
    found = compare(made_up(1), scaled(made_up(2), lambda entry, name: 1.0 if name == OURS else factor))
    assert {each.change for each in found.compared} == {"same"}


def test_with_another_torch_our_time_alone_decides() -> None:
    new = with_versions(scaled(made_up(2), lambda entry, name: 1.04), torch="2.13.0+cu130")
    found = compare(made_up(1), new)
    assert {each.change for each in found.compared} == {"slower"} and found.drifts == {}
    assert [each.what for each in found.differences] == ["torch"]
    assert any("no yardstick" in warning for warning in found.warnings)


def test_runs_without_torch_are_compared_by_time_with_a_warning() -> None:
    def without_torch(results: Results) -> Results:
        return replace(results, entries=tuple(e for e in results.entries if TORCH not in e.competitors))

    found = compare(without_torch(made_up(1)), without_torch(made_up(2)))
    assert [each.relative for each in found.compared] == [None]
    (warning,) = found.warnings
    assert warning == "no product has torch's time in both runs: a card that is slower as a whole looks like us"


def test_noise_of_a_run_hides_what_is_smaller() -> None:
    slowed = scaled(made_up(2), lambda entry, name: 1.05 if entry.name == "16 rows" and name == OURS else 1)
    restless = scaled(slowed, lambda entry, name: 1.1 if entry.name == "16 rows" and name == "torch again" else 1)
    assert compare(made_up(1), slowed).regression
    assert not compare(made_up(1), restless).regression


def test_another_gpu_and_other_versions_are_said() -> None:
    new = with_versions(made_up(2), NVRTC="13.2")
    new = replace(new, environment=replace(new.environment, gpu="NVIDIA H100 80GB HBM3", l2="warm"))
    found = compare(made_up(1), new)
    assert {each.what: (each.old, each.new) for each in found.differences} == {
        "GPU": ("NVIDIA H200", "NVIDIA H100 80GB HBM3"),
        "NVRTC": ("13.0", "13.2"),
        "L2": ("flushed", "warm"),
    }
    assert "warning: the GPUs differ (NVIDIA H200, NVIDIA H100 80GB HBM3)" in found.describe()
    assert "warning: L2 was flushed in one run alone" in found.describe()


def test_products_of_one_run_alone_are_listed() -> None:
    whole = made_up(1)
    found = compare(replace(whole, entries=whole.entries[1:]), replace(made_up(2), entries=made_up(2).entries[:-1]))
    assert found.only_new == ("seeds: 4096x4096x4096 float32 (fp32)",)
    assert found.only_old == ("shapes: 4096x4096x4096 int8",)
    assert len(found.compared) == len(whole.entries) - 2


def test_runs_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(ValueError, match="no product in common"):
        compare(replace(made_up(1), entries=()), made_up(2))


def test_the_description_says_by_how_much_and_ends_with_the_verdict() -> None:
    slowed = scaled(made_up(2), lambda entry, name: 1.5 if entry.name == "square 16384" and name == OURS else 1)
    *_, slower, verdict = compare(made_up(1), slowed).describe().splitlines()
    assert slower.startswith("slower: aligned: 16384x16384x16384 bfloat16: 12.4")
    assert "(+5" in slower and ", by torch's +" in slower and slower.endswith(", clocks held down)")
    assert verdict == "24 products compared: 0 faster, 23 the same, 1 slower: a regression"


def test_a_comparison_is_plain_data() -> None:
    assert asdict(compare(made_up(1), made_up(2)))["regression"] is False
