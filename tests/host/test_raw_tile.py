"""float32 tiles in shared memory: a model of the addresses of raw_tile.cuh, against what the copy engine writes."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest

WGMMA_M, WGMMA_K, TILE_K = 64, 16, 64
WARPGROUP = 128
LINE = 32  # elements
LINE_BYTES = 128
BANKS, BANK_BYTES = 32, 4
LAYOUTS = {"K-major": False, "MN-major": True}
EXTENTS = [64, 128]

Integers = npt.NDArray[np.int64]


# The copy engine.


def panel_lines(extent: int, mn_major: bool) -> int:
    return TILE_K if mn_major else extent


def engine_offsets(extent: int, mn_major: bool) -> Integers:
    """Where an element of a tile is, by row and k. The engine swaps the 16 bytes of a line by the line's number,
    which it takes from the address: tiles and panels begin at multiples of 1024."""
    rows, ks = np.meshgrid(np.arange(extent), np.arange(TILE_K), indexing="ij")
    along, line = (rows, ks) if mn_major else (ks, rows)
    panel_bytes = panel_lines(extent, mn_major) * LINE_BYTES
    assert panel_bytes % 1024 == 0
    linear = along // LINE * panel_bytes + line * LINE_BYTES + along % LINE * 4
    offsets: Integers = linear ^ (linear >> 7 & 7) << 4
    return offsets


# RawTile.


def tile_bytes(extent: int, mn_major: bool) -> int:
    panels = (extent if mn_major else TILE_K) // LINE
    return panels * panel_lines(extent, mn_major) * LINE_BYTES


def group_bytes(extent: int, mn_major: bool) -> int:
    return WGMMA_M // LINE * panel_lines(extent, mn_major) * LINE_BYTES if mn_major else WGMMA_M * LINE_BYTES


def reader_offsets(extent: int, mn_major: bool) -> Integers:
    """Reader::offsets_, by thread."""
    thread = np.arange(WARPGROUP)
    warp, row, step = thread // 32, thread % 32 // 4, thread % 4
    panel_bytes = panel_lines(extent, mn_major) * LINE_BYTES
    offsets = np.zeros((WARPGROUP, 4), dtype=np.int64)
    for i in range(4):
        if mn_major:
            h, k = i // 2, 2 * step + i % 2
            sixteens = (warp % 2 * 4 + h * 2 + row // 4) ^ k
            offsets[:, i] = warp // 2 * panel_bytes + k * LINE_BYTES + sixteens * 16 + row % 4 * 4
        else:
            offsets[:, i] = (warp * 16 + row) * LINE_BYTES + ((i * 2 + step // 2) ^ row) * 16 + step % 2 * 8
    return offsets


def loads(extent: int, mn_major: bool, part: int) -> list[tuple[list[int], Integers]]:
    """Reader::read: for each load, the elements of the fragment that it brings, and its addresses by thread."""
    offsets = reader_offsets(extent, mn_major)
    panel_bytes = panel_lines(extent, mn_major) * LINE_BYTES
    found = []
    for i in range(4):
        h, eight = i % 2, part * 2 + i // 2
        if mn_major:
            found += [([2 * i + e], offsets[:, 2 * h + e] + eight * 8 * LINE_BYTES) for e in range(2)]
        else:
            address = offsets[:, eight % 4] + eight // 4 * panel_bytes + h * 8 * LINE_BYTES
            found.append(([2 * i, 2 * i + 1], address))
    return found


def every_load(extent: int, mn_major: bool) -> list[tuple[int, int, list[int], Integers]]:
    """Those of all consumers and all parts of a step."""
    return [
        (consumer, part, elements, addresses + consumer * group_bytes(extent, mn_major))
        for consumer, part in itertools.product(range(extent // WGMMA_M), range(TILE_K // WGMMA_K))
        for elements, addresses in loads(extent, mn_major, part)
    ]


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("mn_major", LAYOUTS.values(), ids=LAYOUTS)
def test_the_copy_engine_fills_a_tile(extent: int, mn_major: bool) -> None:
    offsets = engine_offsets(extent, mn_major)
    assert sorted(offsets.ravel()) == list(range(0, tile_bytes(extent, mn_major), 4))
    assert tile_bytes(extent, mn_major) == extent * TILE_K * 4


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("mn_major", LAYOUTS.values(), ids=LAYOUTS)
def test_every_thread_reads_its_fragment_and_every_element_is_read_once(extent: int, mn_major: bool) -> None:
    offsets = engine_offsets(extent, mn_major)
    thread = np.arange(WARPGROUP)
    warp, lane = thread // 32, thread % 32
    reads = np.zeros(tile_bytes(extent, mn_major) // 4, dtype=int)
    for consumer, part, elements, addresses in every_load(extent, mn_major):
        assert not (addresses % (4 * len(elements))).any()
        for n, element in enumerate(elements):
            # The fragment of wgmma's A, as the PTX manual has it: element 2 i + e of a thread.
            i, e = divmod(element, 2)
            rows = consumer * WGMMA_M + warp * 16 + lane // 4 + 8 * (i % 2)
            ks = part * WGMMA_K + lane % 4 * 2 + 8 * (i // 2) + e
            assert (addresses + 4 * n == offsets[rows, ks]).all(), (consumer, part, element)
            np.add.at(reads, (addresses + 4 * n) // 4, 1)
    assert (reads == 1).all()


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("mn_major", LAYOUTS.values(), ids=LAYOUTS)
def test_loads_of_a_warp_use_all_banks_evenly(extent: int, mn_major: bool) -> None:
    """Every bank has as many words to give as a load has for each thread: two wavefronts for pairs, one for single
    words. No word is asked for twice."""
    for _, _, elements, addresses in every_load(extent, mn_major):
        assert len(elements) == (1 if mn_major else 2)
        for of_warp in addresses.reshape(-1, 32):
            words = (of_warp[:, None] // BANK_BYTES + np.arange(len(elements))).ravel()
            assert len(set(words)) == len(words)
            assert (np.bincount(words % BANKS, minlength=BANKS) == len(elements)).all()


@pytest.mark.parametrize("mn_major", LAYOUTS.values(), ids=LAYOUTS)
def test_without_the_swizzle_loads_would_meet_in_banks(mn_major: bool) -> None:
    """What the test above looks for can be seen."""
    rows, ks = np.arange(32) // 4, np.arange(32) % 4 * 2
    along, line = (rows, ks) if mn_major else (ks, rows)
    words = (line * LINE_BYTES + along * 4) // BANK_BYTES
    assert np.bincount(words % BANKS).max() > (1 if mn_major else 2)
