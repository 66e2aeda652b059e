"""The files of GPUs: what they hold, who reads it, which one a GPU takes, and what is wrong with a wrong one."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path

import pytest

from tilesmith.bench.rates_text import Value, facts_text, patched
from tilesmith.core import rates
from tilesmith.core.device import KNOWN_GPUS, named
from tilesmith.core.gpu_files import FIT, GpuFile, gpu_files
from tilesmith.core.roofline import Peak
from tilesmith.kernels import turn
from tilesmith.kernels.fp64 import gemv, skinny
from tilesmith.kernels.hopper import cost as hopper_cost
from tilesmith.kernels.hopper.tf32 import Tf32Rates
from tilesmith.kernels.mma import cost as mma_cost
from tilesmith.kernels.outer import outer
from tilesmith.kernels.simt import family as simt
from tilesmith.override.cutover import TorchTimes
from tilesmith.runtime.executor import HostRates

READERS: dict[str, type] = {
    "clocks": rates.Clocks,
    "host": HostRates,
    "hopper": hopper_cost.Rates,
    "hopper_tf32": Tf32Rates,
    "mma.fp64": mma_cost.Rates,
    "mma.float64": mma_cost.Rates,
    "mma.tf32": mma_cost.Rates,
    "mma.half": mma_cost.Rates,
    "mma.large_half": mma_cost.Rates,
    "mma.terms": mma_cost.Rates,
    "mma.int8": mma_cost.Rates,
    "turn": turn.Rates,
    "fp64.skinny": skinny.Rates,
    "fp64.gemv": gemv.Rates,
    "outer": outer.Rates,
    "simt": simt.Rates,
    "torch": TorchTimes,
}
GPU = facts_text(named("a100"), Peak.known("a100"))
TOLD = 'fitted = 2026-11-17\ncommand = "a"\nnote = "b"\n'


@dataclass(frozen=True)
class Inner:
    x: float
    steps: int = 1


@dataclass(frozen=True)
class Outer:
    rate: float
    inner: Inner
    tiles: Mapping[str, Inner]


def file(text: str, key: str = "some") -> GpuFile:
    return GpuFile.parse(key, GPU + text)


def tables(found: Mapping[str, object], prefix: str = "") -> set[str]:
    """The names of the readers' tables that a file has."""
    names = set()
    for name, value in found.items():
        if prefix + name in READERS:
            names.add(prefix + name)
        else:
            assert isinstance(value, Mapping), f"{prefix}{name} has no reader"
            names |= tables(value, f"{prefix}{name}.")
    return names


def test_every_table_of_the_h200_has_a_reader_and_every_reader_a_table() -> None:
    h200 = gpu_files()[0]
    assert h200.key == "h200"
    assert tables(h200.tables) == READERS.keys()


@pytest.mark.parametrize("gpu", KNOWN_GPUS)
@pytest.mark.parametrize("table", READERS)
def test_every_known_gpu_uses_the_rates_of_the_h200(gpu: str, table: str) -> None:
    kind = READERS[table]
    found: object = rates.section(named(gpu), table, kind)
    assert isinstance(found, kind)
    assert found is rates.section(named(gpu), table, kind)
    assert found == rates.section(named("h200"), table, kind)


def test_numbers_are_what_the_file_says() -> None:
    hopper = rates.section(named("h200"), "hopper", hopper_cost.Rates)
    assert (hopper.single.read_bytes_per_clock, hopper.terms.store_hiding_steps) == (2380.0, 2**30)
    assert hopper.split_in_registers.two_consumers == hopper_cost.RegisterStepRates(1560.0, 9.7)
    times = rates.section(named("h200"), "torch", TorchTimes)
    assert times.realigned_narrow.of(15_500_000, 0) == 14.0
    assert times.realigned_narrow.of(0, 1.8e9) == 10.0
    assert rates.section(named("h200"), "simt", simt.Rates).tiles["64x64x8"].scalar_share == 0.9


def test_other_files_have_facts_alone_and_say_that_they_were_not_measured() -> None:
    others = gpu_files()[1:]
    ampere, ada, blackwell = (
        {"a100", "a30", "a10", "rtx3090"},
        {"l4", "l40s", "rtx4090"},
        {"b200", "rtx5090", "rtxpro6000"},
    )
    assert {each.key for each in others} == {"t4", *ampere, *ada, "h100", "gh200", *blackwell}
    assert all(not each.tables and "not measured here" in each.facts.source for each in others)


OWN = file("[t]\n" + TOLD + "x = 1.0\nsteps = 1\n", "own")
NEAR = replace(file("[t]\n" + TOLD + "x = 2\nsteps = 2\n[u]\n" + TOLD + "x = 3\nsteps = 3\n", "near"))
FAR = GpuFile.parse("far", facts_text(named("t4"), Peak.known("t4")) + "[v]\n" + TOLD + "x = 4\nsteps = 4\n")


@pytest.mark.parametrize(
    ("name", "capability", "table", "x"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0), "t", 1.0),  # the file that fits its name
        ("NVIDIA A100-SXM4-80GB", (8, 0), "u", 3.0),  # which lacks this table
        ("NVIDIA A10", (8, 6), "t", 2.0),  # the nearest architecture
        ("NVIDIA A10", (8, 6), "v", 4.0),
        ("Some GPU", (7, 5), "t", 2.0),
    ],
)
def test_a_gpu_takes_each_table_from_the_nearest_file_that_has_it(
    name: str, capability: tuple[int, int], table: str, x: float
) -> None:
    other = replace(NEAR, facts=replace(NEAR.facts, names=("NVIDIA A10G",), capability=(8, 6)))
    own = replace(OWN, facts=replace(OWN.facts, names=("NVIDIA A100*",)))
    assert rates.pick((FAR, other, own), name, capability, table, Inner).x == x


def test_no_file_has_the_table() -> None:
    with pytest.raises(ValueError, match=r"no file of planner/rates has the table \[nothing\]"):
        rates.section(named("h200"), "nothing", Inner)


TILES = "tiles.a = {x = 1, steps = 2}\n"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("rate = 1\n" + TILES, r"some.toml \[o\] lacks 'inner'"),
        (
            "rate = 1\nspeed = 2\ninner = {x = 1, steps = 1}\n" + TILES,
            r"some.toml \[o\] has 'speed', which is not known",
        ),
        ("rate = 1\ninner = {x = 1}\n" + TILES, r"some.toml \[o.inner\] lacks 'steps'"),
        ("rate = 1\ninner = {x = 1, steps = 1.5}\n" + TILES, r"\[o.inner\] has 1.5 for 'steps', and not a int"),
        ("rate = true\ninner = {x = 1, steps = 1}\n" + TILES, r"\[o\] has True for 'rate', and not a float"),
        ("rate = 1\ninner = {x = 1, steps = 1}\ntiles.b = {x = 1}\n", r"\[o.tiles.b\] lacks 'steps'"),
    ],
)
def test_a_wrong_table_is_named_with_its_file_and_key(table: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        file("[o]\n" + TOLD + table).rates("o", Outer)


@pytest.mark.parametrize("left_out", FIT)
def test_numbers_without_the_date_and_command_of_their_fit_are_refused(left_out: str) -> None:
    told = "".join(line + "\n" for line in TOLD.splitlines() if not line.startswith(left_out))
    with pytest.raises(ValueError, match=rf"some.toml \[o\] must say '{left_out}'"):
        file("[o]\n" + told + "x = 1\nsteps = 1\n").rates("o", Inner)


def test_a_file_of_other_tiles_is_refused() -> None:
    tile = "one_block_share = 1\nfull_share = 1\nscalar_share = 1\n"
    wrong = file("[simt]\n" + TOLD + "block_clocks = 1\nstore_clocks = 1\n[simt.tiles.7x7x7]\n" + tile)
    message = r"some.toml \[simt\]: the tiles differ from the kernel's by .*128x128x8, .*7x7x7"
    with pytest.raises(ValueError, match=message):
        wrong.rates("simt", simt.Rates)


def test_a_file_without_facts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"some.toml lacks the table \[gpu\]"):
        GpuFile.parse("some", "")


@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_the_facts_of_a_gpu_are_written_as_they_are_read(gpu: str) -> None:
    facts = gpu_files()[list(KNOWN_GPUS).index(gpu)].facts
    written = GpuFile.parse(gpu, facts_text(named(gpu), Peak.known(gpu))).facts
    assert replace(written, names=facts.names, source=facts.source) == facts


def test_a_table_is_written_in_its_place_and_the_rest_stays() -> None:
    path = Path(rates.__file__).parents[1] / "planner/rates/h200.toml"
    text = path.read_text()
    about: dict[str, Value] = {"fitted": date(2027, 1, 2), "command": "c", "note": "n" * 60 + " " + "m" * 60}
    new = patched(text, "hopper.single", about | {"start_clocks": 7000.0})
    before, after = (GpuFile.parse("h200", each).rates("hopper", hopper_cost.Rates) for each in (text, new))
    assert before is not None and after is not None
    assert after == replace(before, single=replace(before.single, start_clocks=7000.0))
    kept, changed = text.splitlines(), new.splitlines()
    assert [line for line in changed if line not in kept] == [
        "fitted = 2027-01-02",
        'command = "c"',
        "n" * 60,
        "m" * 60 + '"""',
        "start_clocks = 7000.0",
    ]
    assert patched(new, "hopper.single", {"start_clocks": 6800.0}).count("\n") == new.count("\n")


def test_a_table_that_a_file_lacks_is_added() -> None:
    source: dict[str, Value] = {"fitted": date(2027, 1, 2), "command": 'say "so"', "note": "b"}
    text = patched(GPU, "o", source | {"rate": 1.5, "inner": {"x": 1e-9, "steps": 3}})
    text = patched(text, "o.tiles", {"7x7": {"x": 2.0, "steps": 4}})
    found = GpuFile.parse("some", text).rates("o", Outer)
    assert found == Outer(1.5, Inner(1e-9, 3), {"7x7": Inner(2.0, 4)})
    assert text.startswith(GPU) and text.endswith("}\n")


def test_rates_are_frozen() -> None:
    for kind in READERS.values():
        assert fields(kind)
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
