"""The `exact` family: how a block divides its tile, on a model of its lanes; its plans; and its machine code."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch
from machine_code import built, complaints, instructions_of_each, total

from tilesmith.device import KNOWN_GPUS
from tilesmith.errors import CompilationError
from tilesmith.jit import compiler, source
from tilesmith.kernels import exact, simt, sm90
from tilesmith.kernels.exact import TILES, Tile
from tilesmith.plan import Plan
from tilesmith.planner import choose
from tilesmith.problem import Problem

H200 = KNOWN_GPUS["h200"]
LAYOUTS = ["nn", "nt", "tn", "tt"]
BANKS = 32
LANES = range(32)


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def laid_out(rows: int, columns: int, layout: str, aligned: bool = True) -> torch.Tensor:
    gap = 0 if aligned else 1
    return meta(columns, rows + gap).T[:rows] if layout == "t" else meta(rows, columns + gap)[:, :columns]


# The model.


@dataclass(frozen=True)
class CopiedTile:
    """CopiedTile of copied_tile.cuh."""

    extent: int
    depth: int
    group: int
    threads: int
    along_k: bool
    aligned: bool

    def __str__(self) -> str:
        return f"{self.extent}x{self.depth} {self.group}{' along K' * self.along_k}{' aligned' * self.aligned}"

    def place(self, mn: int, k: int) -> int:
        if self.along_k:
            return (mn * self.depth + k) ^ mn // (4 * self.group) % 2 * 16
        quad = k // 4 % 4
        return (k * self.extent + mn) ^ (quad * 4 if self.group == 4 else quad % 2 * 4 + quad // 2 * 16)

    def elements(self) -> Iterator[tuple[int, int]]:
        return itertools.product(range(self.extent), range(self.depth))

    def reads(self, first_mn: int, first_k: int) -> Iterator[list[list[int]]]:
        """Of each load instruction of a warp, the places that its lanes read."""
        own = [(first_mn + group_of(lane // 4) * self.group, first_k + lane % 4 * 4) for lane in LANES]
        if self.along_k:
            for j in range(self.group):
                yield [[self.place(mn + j, k + i) for i in range(4)] for mn, k in own]
        else:
            for i in range(4):
                yield [[self.place(mn + j, k + i) for j in range(self.group)] for mn, k in own]

    def copies(self) -> Iterator[list[list[int]]]:
        """Of each copy instruction of a warp, the places that its lanes write."""
        vector = 4 if self.aligned else 1
        line = (self.depth if self.along_k else self.extent) // vector
        for first in range(0, self.extent * self.depth // vector, 32):
            places = []
            for copy in range(first, first + 32):
                across, within = divmod(copy, line)
                floats = range(within * vector, within * vector + vector)
                places.append([self.place(across, x) if self.along_k else self.place(x, across) for x in floats])
            yield places


def group_of(row: int) -> int:
    return row // 2 + row % 2 * 4


def mmas(tile: Tile) -> tuple[int, int]:
    return tile.m // tile.warps_m // 16, tile.n // tile.warps_n // 8


def operand_tiles(tile: Tile, along_k: tuple[bool, bool], aligned: bool = True) -> tuple[CopiedTile, CopiedTile]:
    mmas_m, mmas_n = mmas(tile)
    return (
        CopiedTile(tile.m, tile.k, 2 * mmas_m, tile.threads, along_k[0], aligned),
        CopiedTile(tile.n, tile.k, mmas_n, tile.threads, along_k[1], aligned),
    )


ALL = list(
    dict.fromkeys(
        operand
        for tile, along_k, aligned in itertools.product(TILES, (False, True), (False, True))
        for operand in operand_tiles(tile, (along_k, along_k), aligned)
    )
)


def conflicts(accesses: list[list[int]]) -> int:
    """How often lanes of a part of the warp that is served at once want different words of a bank."""
    width = len(accesses[0])
    at_once = 32 // width
    more = 0
    for first in range(0, 32, at_once):
        words = {place for access in accesses[first : first + at_once] for place in access}
        banks = [word % BANKS for word in words]
        more += len(banks) - len(set(banks))
    return more


@pytest.mark.parametrize("operand", ALL, ids=str)
def test_every_element_has_a_place_of_its_own_and_vectors_stay_together(operand: CopiedTile) -> None:
    places = [operand.place(mn, k) for mn, k in operand.elements()]
    assert sorted(places) == list(range(operand.extent * operand.depth))
    for access in itertools.chain(*operand.copies(), *operand.reads(0, 0)):
        assert access == list(range(access[0], access[0] + len(access)))
        assert access[0] % len(access) == 0


@pytest.mark.parametrize("operand", ALL, ids=str)
def test_no_bank_is_asked_twice(operand: CopiedTile) -> None:
    assert [conflicts(accesses) for accesses in operand.copies()] == [0] * len(list(operand.copies()))
    warps = itertools.product(range(0, operand.extent, 8 * operand.group), range(0, operand.depth, 16))
    assert {conflicts(accesses) for warp in warps for accesses in operand.reads(*warp)} == {0}


def test_a_conflict_is_seen() -> None:
    assert conflicts([[32 * lane] for lane in LANES]) == 31
    assert conflicts([[lane % 4 * 32 + i for i in range(4)] for lane in LANES]) > 0
    assert conflicts([[0] for _ in LANES]) == 0  # all read the same


@pytest.mark.parametrize("operand", ALL, ids=str)
def test_parts_of_an_index_that_share_no_bits_have_places_that_add_up(operand: CopiedTile) -> None:
    for mn, k in operand.elements():
        bits = [(mn & 1 << i, 0) for i in range(6)] + [(0, k & 1 << i) for i in range(7)]
        whole = 0
        for each in bits:
            whole ^= operand.place(*each)
        assert operand.place(mn, k) == whole


@pytest.mark.parametrize("operand", ALL, ids=str)
def test_the_model_places_elements_as_the_kernel_does(operand: CopiedTile) -> None:
    numbers = operand.extent, operand.depth, operand.group, operand.threads, int(operand.along_k), int(operand.aligned)
    text = f'#include "copied_tile.cuh"\nusing Tile = tilesmith::CopiedTile<{", ".join(map(str, numbers))}>;\n'
    some = list(operand.elements())[:: 2 if operand.extent * operand.depth < 2048 else 7]
    text += "".join(f"static_assert(Tile::place({mn}, {k}) == {operand.place(mn, k)});\n" for mn, k in some)
    text += "".join(f"static_assert(tilesmith::group_of({row}) == {group_of(row)});\n" for row in range(8))
    compiler.compile(f'{text}extern "C" __global__ void f() {{}}', "sm_90a")


def dmma(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The product instruction, on lanes' values: as ptx/dmma.cuh has them."""
    whole_a, whole_b, result = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((32, 4))
    for lane in LANES:
        row, step = divmod(lane, 4)
        for i in range(4):
            whole_b[4 * i + step, row] = b[lane, i]
            for h in range(2):
                whole_a[row + 8 * h, 4 * i + step] = a[lane, 2 * i + h]
    product = whole_a @ whole_b
    for lane, h, e in itertools.product(LANES, range(2), range(2)):
        row, step = divmod(lane, 4)
        result[lane, 2 * h + e] = product[row + 8 * h, 2 * step + e]
    return result


def block(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], tile: Tile) -> npt.NDArray[np.float64]:
    """What a block stores of the product of a (tile.m x tile.k) and b (tile.k x tile.n)."""
    mmas_m, mmas_n = mmas(tile)
    warp_m, warp_n = 16 * mmas_m, 8 * mmas_n
    share = 4 * mmas_m * mmas_n // tile.warps_k
    out = np.full((tile.m, tile.n), np.nan)
    for warp_row, warp_column in itertools.product(range(tile.warps_m), range(tile.warps_n)):
        own = [
            (
                warp_row * warp_m + group_of(lane // 4) * 2 * mmas_m,
                warp_column * warp_n + group_of(lane // 4) * mmas_n,
                lane % 4 * 4,
            )
            for lane in LANES
        ]
        ordered = np.zeros((tile.warps_k, 32, 4 * mmas_m * mmas_n))
        for warp_k, k in itertools.product(range(tile.warps_k), range(0, tile.k, 16 * tile.warps_k)):
            first_k = warp_k * 16 + k
            for i, j in itertools.product(range(mmas_m), range(mmas_n)):
                lanes_a = np.array(
                    [[a[m + 2 * i + e % 2, first_k + kk + e // 2] for e in range(8)] for m, _, kk in own]
                )
                lanes_b = np.array([[b[first_k + kk + e, n + j] for e in range(4)] for _, n, kk in own])
                sums = dmma(lanes_a, lanes_b)
                for e in range(4):
                    ordered[warp_k, :, (4 * i + e) * mmas_n + j] += sums[:, e]
        for warp_k, lane in itertools.product(range(tile.warps_k), LANES):
            for s in range(warp_k * share, (warp_k + 1) * share):
                group = s // mmas_n
                row = own[lane][0] + group // 2
                column = warp_column * warp_n + group_of(lane % 4 * 2 + group % 2) * mmas_n + s % mmas_n
                assert np.isnan(out[row, column])
                out[row, column] = ordered[:, lane, s].sum()
    return out


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_block_stores_its_tile_of_the_product(tile: Tile) -> None:
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (tile.m, tile.k)).astype(np.float64)
    b = random.integers(-4, 5, (tile.k, tile.n)).astype(np.float64)
    np.testing.assert_array_equal(block(a, b, tile), a @ b)


# Plans.


@pytest.mark.parametrize("accuracy", ["fp32", "tf32"])
@pytest.mark.parametrize("size", [64, 128, 256, 512])
def test_small_squares_are_multiplied_as_doubles_on_hopper(size: int, accuracy: str) -> None:
    for layout in LAYOUTS:
        a, b = laid_out(size, size, layout[0]), laid_out(size, size, layout[1])
        assert choose(Problem.of(a, b, accuracy=accuracy), H200).name.startswith("exact ")  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [1, 33, 64, 100, 1000, 20_000, 500_000, 4_000_000])
def test_products_of_few_elements_are_of_doubles_on_hopper(k: int) -> None:
    """There the promise in norm is theirs alone: docs/accuracy.md."""
    for (m, n), layout in itertools.product(itertools.product((1, 2, 5, 9, 33, 99), repeat=2), LAYOUTS):
        if m * n < 100:
            problem = Problem.of(laid_out(m, k, layout[0]), laid_out(k, n, layout[1]))
            assert choose(problem, H200).name.split()[0] in ("exact", "thin", "dot"), (m, k, n, layout)


@pytest.mark.parametrize("shape", [(32768, 32, 32768), (4096, 16, 4096)], ids=str)
def test_short_sums_are_of_doubles_on_hopper(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    assert choose(Problem.of(meta(m, k), meta(k, n)), H200).name == "exact 64x64x32"


@pytest.mark.parametrize(
    ("problem", "part"),
    [
        (Problem.of(meta(64, 64).double(), meta(64, 64).double()), "is for float32"),
        (Problem.of(meta(64, 64), meta(64, 64), accuracy="ieee"), "one chain"),
        (Problem.of(meta(64, 0), meta(0, 64)), "nothing to multiply"),
        (Problem.of(meta(0, 64), meta(64, 64)), "nothing to multiply"),
        (Problem.of(meta(2, 1, 4, 1, 8, 8), meta(3, 1, 5, 8, 8)), "3 batch dimensions"),
        (Problem.of(meta(64, 2**24)[:, :64], meta(64, 64)), "32 bits"),
        (Problem.of(meta(2**23, 8), meta(8, 8)), "32 bits"),
    ],
)
def test_what_it_cannot_do_is_said_and_left_to_others(problem: Problem, part: str) -> None:
    reason = exact.rejects(problem, H200)
    assert reason is not None
    assert part in reason
    assert (simt.rejects(problem, H200) is None) == (sm90.rejects(problem, H200) is not None)


def test_other_gpus_sum_in_chains() -> None:
    problem = Problem.of(meta(64, 64), meta(64, 64))
    assert exact.rejects(problem, KNOWN_GPUS["a100"]) == "its products of doubles are fast on compute capability 9.0"
    assert simt.rejects(problem, KNOWN_GPUS["a100"]) is None
    assert simt.rejects(problem, H200) == "sums K in one chain, which may have more error than torch's product"


def test_tiles_that_a_grid_has_no_room_for_are_excluded() -> None:
    problem = Problem.of(meta(2**20, 8), meta(8, 64))
    assert {each.candidate for each in exact.exclusions(problem, H200)} == {"exact 16x32x64", "exact 16x16x128"}
    assert len(list(exact.candidates(problem, H200))) == len(TILES) - 2


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile_divides_evenly_among_its_warps(tile: Tile) -> None:
    mmas_m, mmas_n = mmas(tile)
    assert (mmas_m * 16 * tile.warps_m, mmas_n * 8 * tile.warps_n) == (tile.m, tile.n)
    assert tile.k % (16 * tile.warps_k) == 0
    assert {2 * mmas_m, mmas_n} <= {2, 4}
    assert tile.blocks_per_sm > 1
    assert tile.shared_bytes * tile.blocks_per_sm <= H200.shared_bytes_per_sm - 1024 * tile.blocks_per_sm


# The machine code.


ALIGNMENTS = list(itertools.product((True, False), repeat=2))  # of a and b


def plans() -> dict[str, list[Plan]]:
    """Every tile in every layout. Of the alignments every tile and every layout have all, but only half of them
    together; ranks of batches, and ways to store, come in turn."""
    found: dict[str, list[Plan]] = {}
    ranks = itertools.cycle([((), ()), ((3,), (3,)), ((3, 1), (4,)), ((3, 1), (2, 1, 4))])
    gaps = itertools.cycle([0, 0, 1])
    for (i, tile), (j, layout) in itertools.product(enumerate(TILES), enumerate(LAYOUTS)):
        for aligned in ALIGNMENTS[(i + j) % 2 :: 2]:
            a_batch, b_batch = next(ranks)
            a = laid_out(128, 256, layout[0], aligned[0]).expand(*a_batch, 128, 256)
            b = laid_out(256, 128, layout[1], aligned[1]).expand(*b_batch, 256, 128)
            out = meta(*torch.broadcast_shapes(a_batch, b_batch), 128, 128 + next(gaps))[..., :128]
            found.setdefault(f"{tile} {layout}", []).append(exact.plan(Problem.of(a, b, out=out), H200, tile))
    return found


PLANS = plans()


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS)
def test_the_machine_code_multiplies_doubles_and_spills_nothing(plans: list[Plan]) -> None:
    for plan, found in zip(plans, instructions_of_each([plan.product.kernel for plan in plans]), strict=True):
        assert_multiplies_doubles_and_spills_nothing(plan, found)


def assert_multiplies_doubles_and_spills_nothing(plan: Plan, found: Counter[str]) -> None:
    (stage,) = plan.stages
    _, log = built(stage.kernel)
    assert complaints(log) == []
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    c = dict(stage.kernel.constants)
    used = re.search(r"Used (\d+) registers", log)
    assert used is not None
    assert int(used[1]) * stage.threads * int(c["blocks_per_sm"]) <= H200.registers_per_sm
    tile = next(tile for tile in TILES if plan.name == f"exact {tile}")
    mmas_m, mmas_n = mmas(tile)
    rounds = tile.k // 16 // tile.warps_k
    assert total(found, r"DMMA\.16x8x16") == total(found, r"DMMA.*") == mmas_m * mmas_n * rounds
    # A value is converted once for each warp that has it.
    assert total(found, r"F2F\.F64\.F32") == (8 * mmas_m + 4 * mmas_n) * rounds
    assert total(found, r"(LDL|STL)\b.*") == 0
    assert total(found, r"LDG\..*") == 0
    assert (total(found, r"LDGSTS\.E\.BYPASS\.128.*") > 0) == (c["a_aligned"] or c["b_aligned"])
    assert (total(found, r"LDGSTS\.E(\.LTC\w+)?(\.ZFILL)?") > 0) == (not (c["a_aligned"] and c["b_aligned"]))
    vectors = total(found, r"LDS\.(64|128)")
    reads = sum(g if along else 4 for g, along in ((2 * mmas_m, c["a_along_k"]), (mmas_n, c["b_along_k"]))) * rounds
    parts = 0 if tile.warps_k == 1 else tile.warps_k * (4 * mmas_m * mmas_n // tile.warps_k // 2)
    exchanged = 0 if c["out_aligned"] else tile.m * tile.n // stage.threads
    assert vectors == reads + parts + exchanged
    assert (total(found, rf"STG\.E\.{32 * mmas_n}") > 0) == c["out_aligned"]
    assert total(found, r"PREEXIT") == total(found, r"ACQBULK") == 1


@pytest.mark.parametrize("name", ["shared_bytes", "parameter_bytes", "threads"])
def test_a_kernel_with_a_wrong_size_does_not_compile(name: str) -> None:

    kernel = next(iter(PLANS.values()))[0].product.kernel
    text = source.render(kernel)
    right = dict(kernel.constants)[name]
    wrong = text.replace(f"{name} = {right};", f"{name} = {int(right) + 32};")
    assert wrong != text
    with pytest.raises(CompilationError, match="static assertion failed"):
        compiler.compile(wrong, "sm_90a")
