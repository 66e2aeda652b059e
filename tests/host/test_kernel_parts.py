"""What no product tells of the kernels: that no tile is computed twice, and that the lanes of a warp do not wait for
each other's banks of shared memory. The kernels' own headers in C++, called from Python."""

import ctypes
import itertools
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from launched import constants_of

from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.problem import Problem
from tilesmith.emulator import build
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper import tiles
from tilesmith.kernels.hopper.constants import CommonConstants
from tilesmith.kernels.hopper.launch import Fp32Parameters, GemmParameters, Schedule
from tilesmith.kernels.mma.tiles import (
    FULL_RANGE_TILE,
    LARGE_TILES_OF_HALVES,
    TILES_OF_DOUBLES,
    TILES_OF_FLOAT64,
    TILES_OF_HALVES,
    TILES_OF_TERMS,
    TILES_OF_TF32,
)
from tilesmith.runtime import source

pytestmark = pytest.mark.xdist_group("kernel parts")  # one worker builds them, once

Integers = npt.NDArray[np.int32]

H200 = KNOWN_GPUS["h200"]
PARTS = Path(__file__).parents[1] / "support" / "kernel_parts.cpp"
BANKS = 32


class Copied(NamedTuple):
    """The arguments of CopiedTile in copied_tile.cuh."""

    extent: int
    depth: int
    group: int
    threads: int
    along_k: bool
    copy_bytes: int
    by_matrices: bool
    itemsize: int

    @property
    def name(self) -> str:
        return "_".join(str(int(each)) for each in self)

    @property
    def code(self) -> str:
        number = {8: "unsigned long long", 4: "unsigned", 2: "unsigned short"}[self.itemsize]
        own = ", ".join(str(int(each)) for each in self[:-1])
        tile = f"CopiedTile<{number}, {own}, false>, {number}"
        copies = f"find_copies<{tile}, {self.extent}, {self.depth}, {self.threads}, {int(self.along_k)}>(to);"
        copying = f'extern "C" void copies_{self.name}(unsigned* to) {{ {copies} }}\n'
        if self.by_matrices:
            return copying
        reads = f"find_reads<{tile}, {self.group}>(to, mn, k);"
        return copying + f'extern "C" void reads_{self.name}(unsigned* to, int mn, int k) {{ {reads} }}\n'


def copied_tiles() -> list[Copied]:
    """The tiles of A and B of mma.cu, along K and across it, by vectors and by words or doubles."""
    found = []
    of_each_size = ((8, TILES_OF_FLOAT64), (4, TILES_OF_DOUBLES + TILES_OF_TF32), (2, TILES_OF_HALVES))
    for (itemsize, own), along_k, in_vectors in itertools.product(of_each_size, (False, True), (False, True)):
        copy_bytes = 16 if in_vectors else max(4, itemsize)
        for tile in own:
            rest = (tile.threads, along_k, copy_bytes, False, itemsize)
            found.append(Copied(tile.m, tile.k, tile.m // tile.warps_m // 8, *rest))
            found.append(Copied(tile.n, tile.k, tile.n // tile.warps_n // 8, *rest))
    return list(dict.fromkeys(found))


def tiles_of_matrices() -> list[Copied]:
    """Those that ldmatrix reads: mma_large.cu and mma_fp32.cu. The emulator counts how often their banks are asked."""
    return [
        Copied(extent, tile.k, 4, tile.threads, along_k, 16, True, 2)
        for tile in (*LARGE_TILES_OF_HALVES, *TILES_OF_TERMS, FULL_RANGE_TILE)
        for extent, along_k in itertools.product({tile.m, tile.n}, (False, True))
    ]


COPIED = copied_tiles()
OF_MATRICES = list(dict.fromkeys(tiles_of_matrices()))
FP32_TILES = list(itertools.product((64, 128), (False, True)))  # rows, and whether they run along memory


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("parts")
    fragments = (
        f'extern "C" void fragments_{rows}_{int(mn)}(unsigned* to) {{ find_fragments<{rows}, {int(mn)}>(to); }}\n'
        for rows, mn in FP32_TILES
    )
    schedule = schedule_of(*range(8)).declaration().replace("Parameters", "Schedule")
    known = f'{source.library_constants()}\n#include "tile.cuh"\nnamespace tilesmith {{\n{schedule}}}\n'
    own = "".join((*(each.code for each in (*COPIED, *OF_MATRICES)), *fragments))
    (folder / "parts.cpp").write_text(f'{known}#include "{PARTS}"\n{own}')
    build._write(folder, build._files(()))
    options = ("-std=c++17", "-O0", "-shared", "-fPIC", "-Wno-unknown-pragmas", "-Iemulator", "-Icuda", "-I.")
    command = [build.compiler().path, *options, "-include", "prelude.h", "parts.cpp", "-o", "parts.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "parts.so"))


def found(function: Any, *shape: int, arguments: tuple[int, ...] = ()) -> Integers:
    numbers: Integers = np.zeros(shape, dtype=np.int32)
    function(ctypes.c_void_p(numbers.ctypes.data), *arguments)
    return numbers


def conflicts(words: npt.NDArray[Any]) -> int:
    """How often lanes of a part of the warp that is served at once want different words of a bank. By lanes, and the
    words of an access."""
    at_once = BANKS // words.shape[1]
    more = 0
    for own in words.reshape(-1, at_once * words.shape[1]):
        different = np.unique(own)
        more += len(different) - len(np.unique(different % BANKS))
    return more


def words_of(elements: Integers, itemsize: int) -> Integers:
    """By lanes, those of elements that lie side by side."""
    if itemsize == 8:
        return np.stack((2 * elements, 2 * elements + 1), axis=-1).reshape(len(elements), -1).astype(np.int32)
    of_word = 4 // itemsize
    return elements[..., ::of_word] // of_word


def test_a_conflict_is_seen() -> None:
    lanes = np.arange(32, dtype=np.int32)
    assert conflicts(32 * lanes[:, None]) == 31
    assert conflicts(lanes[:, None] % 4 * 32 + np.arange(4, dtype=np.int32)) > 0
    assert conflicts(np.zeros((32, 1), dtype=np.int32)) == 0  # all read the same


@pytest.mark.parametrize("tile", (*COPIED, *OF_MATRICES), ids=lambda each: each.name)
def test_copies_fill_a_tile_once_and_no_bank_is_asked_twice(tile: Copied, parts: ctypes.CDLL) -> None:
    width, size = tile.copy_bytes // 4, tile.extent * tile.depth * tile.itemsize // 4
    bytes_to = found(getattr(parts, f"copies_{tile.name}"), size // width // 32, 32, 1)
    assert not (bytes_to % tile.copy_bytes).any()
    words = bytes_to // 4 + np.arange(width, dtype=np.int32)
    assert np.array_equal(np.sort(words.ravel()), np.arange(size))
    assert {conflicts(instruction) for instruction in words} == {0}


@pytest.mark.parametrize("tile", COPIED, ids=lambda each: each.name)
def test_warps_read_a_copied_tile_once_and_no_bank_is_asked_twice(tile: Copied, parts: ctypes.CDLL) -> None:
    seen = []
    for place in itertools.product(range(0, tile.extent, 8 * tile.group), range(0, tile.depth, 16)):
        elements = found(getattr(parts, f"reads_{tile.name}"), 32, tile.group, 4, arguments=place)
        seen.append(elements.ravel())
        by_line = elements.transpose((1, 0, 2) if tile.along_k else (2, 0, 1))
        width = min(by_line.shape[-1], 16 // tile.itemsize)
        by_instruction = by_line.reshape(len(by_line), 32, -1, width).swapaxes(1, 2).reshape(-1, 32, width)
        assert (by_instruction == by_instruction[..., :1] + np.arange(width)).all()
        assert not (by_instruction[..., 0] % width).any()
        assert {conflicts(words_of(instruction, tile.itemsize)) for instruction in by_instruction} == {0}
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(tile.extent * tile.depth))


@pytest.mark.parametrize(("rows", "mn_major"), FP32_TILES)
def test_consumers_read_an_fp32_tile_with_all_banks_evenly(rows: int, mn_major: bool, parts: ctypes.CDLL) -> None:
    """Single words across K, and pairs along it, for which a warp is served twice. Nothing is read twice."""
    words = found(getattr(parts, f"fragments_{rows}_{int(mn_major)}"), 128, 4, 8)
    assert len(np.unique(words)) == words.size
    width = 1 if mn_major else 2
    for instruction in words.reshape(4, 32, -1, width).transpose(0, 2, 1, 3).reshape(-1, 32 * width):
        assert (np.bincount(instruction % BANKS, minlength=BANKS) == width).all()


def test_consumers_read_an_operand_across_k_with_all_banks_evenly(parts: ctypes.CDLL) -> None:
    """Lanes with an odd number read their second k first. Nothing is read twice."""
    words = found(parts.turned_fragments, 4, 32, 4, 2, 2)  # warp, lane, step; k, row
    assert len(np.unique(words)) == words.size
    in_order = words.copy()
    in_order[:, 1::2] = words[:, 1::2, :, ::-1]
    for instruction in in_order.transpose(0, 2, 3, 4, 1).reshape(-1, 32):
        assert (np.bincount(instruction % BANKS, minlength=BANKS) == 1).all()


def schedule_of(*values: int) -> Schedule:
    """Of whole sums."""
    names = [field.name for field in fields(Schedule) if field.name != "sum_steps"]
    return Schedule(**dict(zip(names, values, strict=True)), sum_steps=0)


def assert_walked_once(s: Schedule, parts: ctypes.CDLL, blocks: int, keeps_columns: bool) -> None:
    """If blocks keep to their columns, each has one of each column group, and needs none of them again."""
    visits = (ctypes.c_int * tiles_of(s))()
    columns = (ctypes.c_int * blocks)()
    (parts.walk_columns if keeps_columns else parts.walk_all)(s.packed(), blocks, visits, columns)
    assert set(visits) == {1}
    if keeps_columns:
        assert max(columns) <= s.tiles_n // s.column_group


def tiles_of(s: Schedule) -> int:
    return s.tiles_m * s.tiles_n * s.split_k * s.batches


@pytest.mark.parametrize("raster_group", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("blocks", [1, 7])
def test_the_schedule_visits_every_tile_of_every_part_once(raster_group: int, blocks: int, parts: ctypes.CDLL) -> None:
    for tiles_m, tiles_n, split_k, batches in itertools.product((1, 2, 5, 9), (1, 3, 4), (1, 2, 3), (1, 2)):
        schedule = schedule_of(tiles_m, tiles_n, split_k, batches, *divmod(7, split_k), raster_group, tiles_n)
        assert_walked_once(schedule, parts, blocks, keeps_columns=False)
        steps = 0
        for k_part in range(split_k):
            part = (ctypes.c_int * 2)()
            parts.part_of_k(schedule.packed(), k_part, part)
            assert part[0] == steps
            steps += part[1]
        assert steps == 7


def test_blocks_that_keep_their_columns_visit_every_tile_once(parts: ctypes.CDLL) -> None:
    """However many rows of a column group the blocks have at once: they end within it, or go on in the next one."""
    for tiles_m, columns, groups, rows in itertools.product((1, 2, 3, 5, 12), (1, 3, 4), (1, 2, 3), (1, 2, 3, 5)):
        if rows <= tiles_m:  # other plans do not exist: see the next test
            schedule = schedule_of(tiles_m, columns * groups, 1, 1, 1, 0, 1, columns)
            assert_walked_once(schedule, parts, rows * columns, keeps_columns=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("sm_count", [132, 114, 78, 7])
def test_plans_have_grids_with_which_blocks_can_keep_their_columns(
    sm_count: int, dtype: torch.dtype, parts: ctypes.CDLL
) -> None:
    """Whole rows of a column group, and all blocks start inside of the first one."""
    device = replace(H200, sm_count=sm_count)
    kinds, known = set(), set()
    sizes = [1, 1000, 32768, *(tiles * 128 for tiles in (sm_count, sm_count + 1, 2 * sm_count, 300))]
    for m, n in itertools.product((1, 64, 200, 3000), sizes):
        problem = Problem.of(*(torch.empty(shape, dtype=dtype, device="meta") for shape in ((m, 64), (64, n))))
        for c in tiles.configurations(problem, device):
            if hopper.unsuited(problem, device, c) is not None:
                continue
            stage = hopper.plan(problem, device, c).product
            if not constants_of(stage.kernel, CommonConstants).stationary_b:
                continue
            told = stage.parameters
            assert isinstance(told, GemmParameters | Fp32Parameters)
            schedule = told.schedule
            blocks = stage.grid[0]
            assert (stage.cluster, schedule.split_k, schedule.batches, schedule.k_steps) == (1, 1, 1, 1)
            assert (schedule.tiles_n % schedule.column_group, blocks % schedule.column_group) == (0, 0)
            assert blocks // schedule.column_group <= schedule.tiles_m
            if (schedule, blocks) not in known:
                known.add((schedule, blocks))
                assert_walked_once(schedule, parts, blocks, keeps_columns=True)
            kinds.add((schedule.column_group < schedule.tiles_n, blocks < tiles_of(schedule)))
    assert kinds == {(False, False), (False, True), (True, True)}
