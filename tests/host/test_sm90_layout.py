"""What the plans of the `sm90` family do with memory: a model of the kernels' copies, loads and stores, run on
tensors of the CPU. It has the addresses of the kernels and none of their arithmetic."""

import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilesmith.device import KNOWN_GPUS, Device
from tilesmith.kernels import sm90
from tilesmith.kernels.result import Store
from tilesmith.plan import Plan, Stage, TensorMap
from tilesmith.problem import Problem

H200 = KNOWN_GPUS["h200"]
FEW_SMS = replace(H200, sm_count=5)  # so that a block has several tiles
TILE_K = 64
BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32

Bits = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

_BITS: dict[int, Any] = {2: np.uint16, 4: np.uint32}


# Memory.


class Memory:
    """A buffer: the bits of its elements, which of them are the tensor's, and how often each was written."""

    def __init__(self, bits: Bits, address: int, origin: int, is_own: Bits) -> None:
        self.bits = bits
        self.address = address  # of the buffer's first byte, which is the element `origin`
        self.origin = origin
        self.is_own = is_own
        self.writes = np.zeros(len(bits), dtype=np.int64)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Memory":
        """All of a tensor's storage."""
        whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        is_own = torch.zeros(whole.numel(), dtype=torch.bool)
        is_own.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)
        integer = torch.int16 if tensor.itemsize == 2 else torch.int32
        bits = whole.view(integer).numpy().view(_BITS[tensor.itemsize])
        return cls(bits, tensor.data_ptr(), int(tensor.storage_offset()), is_own.numpy())

    @classmethod
    def workspace(cls, size: int) -> "Memory":
        """Poisoned. In 16-bit elements, at an aligned address."""
        bits = np.full(-(-size // 4) * 2, 0xFFFF, dtype=np.uint16)
        return cls(bits, 0, 0, np.ones(len(bits), dtype=bool))

    @property
    def itemsize(self) -> int:
        return self.bits.itemsize

    def widened(self) -> "Memory":
        """The same memory in elements of 32 bits."""
        wide = Memory(self.bits.view(np.uint32), self.address, self.origin, np.ones(len(self.bits) // 2, dtype=bool))
        assert self.origin == 0
        return wide

    def read(self, at: Indices) -> Bits:
        """Elements of the tensor itself, by their distance from its first."""
        where = at + self.origin
        assert where.size == 0 or (where.min() >= 0 and where.max() < len(self.bits)), "read outside of the storage"
        assert self.is_own[where].all(), "read outside of the tensor"
        return self.bits[where]

    def read_aligned(self, first: int, vectors: int, is_wanted: Bits) -> Bits:
        """Whole vectors of 16 bytes, each of which must hold an element that is wanted. The memory around a tensor
        may end anywhere here, but not within a vector on a GPU."""
        per_vector = 16 // self.itemsize
        assert (self.address + first * self.itemsize) % 16 == 0
        assert is_wanted.reshape(vectors, per_vector).any(axis=1).all(), "a vector without any wanted element was read"
        where = np.arange(first, first + vectors * per_vector) + self.origin
        exists = (where >= 0) & (where < len(self.bits))
        assert self.is_own[where[is_wanted]].all(), "read outside of the tensor"
        found = np.full(len(where), 0x7FFF, dtype=self.bits.dtype)  # a NaN in both types
        found[exists] = self.bits[where[exists]]
        return found

    def write(self, at: Indices, bits: Bits) -> None:
        where = at + self.origin
        assert where.size == 0 or (where.min() >= 0 and where.max() < len(self.bits)), "written outside of the storage"
        assert self.is_own[where].all(), "written outside of the tensor"
        np.add.at(self.writes, where, 1)
        self.bits[where] = bits

    def spoil(self, at: Indices) -> None:
        """Written by the way: only memory that nobody else uses may be."""
        where = at + self.origin
        assert self.is_own[where].all(), "written past the end of a line"
        self.bits[where] = np.iinfo(self.bits.dtype).max  # a NaN


def to_double(bits: Bits, dtype: torch.dtype) -> npt.NDArray[np.float64]:
    integer = np.int16 if dtype.itemsize == 2 else np.int32
    values: npt.NDArray[np.float64] = torch.from_numpy(bits.view(integer).copy()).view(dtype).double().numpy()
    return values


def to_bits(values: npt.NDArray[np.float64], dtype: torch.dtype) -> Bits:
    """Rounded to float32, as a sum is, and then to the type."""
    rounded = torch.from_numpy(values).float().to(dtype)
    integer = torch.int16 if dtype.itemsize == 2 else torch.int32
    return rounded.view(integer).numpy().view(_BITS[dtype.itemsize])


# The copy engine.


class Engine:
    """Boxes of the tensor that a map describes."""

    def __init__(self, tensor_map: TensorMap, memory: Memory) -> None:
        size = tensor_map.dtype.itemsize
        self.map = tensor_map
        self.memory = memory.widened() if size > memory.itemsize else memory
        # What cuTensorMapEncodeTiled asks for.
        assert (self.memory.address + tensor_map.offset) % 16 == 0
        assert 2 <= len(tensor_map.sizes) <= 5
        assert len(tensor_map.sizes) == len(tensor_map.box) == len(tensor_map.strides) + 1
        assert all(1 <= n <= 2**32 for n in tensor_map.sizes)
        assert all(s % 16 == 0 and 0 < s < 2**40 for s in tensor_map.strides)
        assert all(1 <= n <= 256 for n in tensor_map.box)
        assert tensor_map.box[0] * size == tensor_map.line_bytes in (16, 32, 64, 128)
        self.strides = [1, *(stride // size for stride in tensor_map.strides)]

    def _box(self, coordinates: Sequence[int]) -> tuple[Indices, Bits]:
        """The elements of a box, slowest dimension first, and which of them are inside."""
        at = np.full((1,) * len(self.map.box), self.map.offset // self.map.dtype.itemsize, dtype=np.int64)
        inside = np.ones_like(at, dtype=bool)
        rank = len(self.map.box)
        assert len(coordinates) == rank
        dimensions = zip(coordinates, self.map.box, self.map.sizes, self.strides, strict=True)
        for d, (first, box, size, stride) in enumerate(dimensions):
            index = np.arange(first, first + box).reshape([-1 if x == rank - 1 - d else 1 for x in range(rank)])
            at = at + index * stride
            inside = inside & (index >= 0) & (index < size)
        return at, inside

    def load(self, coordinates: Sequence[int]) -> npt.NDArray[np.float64]:
        """A box as [line][element], with zeros for what is outside of the tensor."""
        at, inside = self._box(coordinates)
        found = np.zeros(inside.shape, dtype=self.memory.bits.dtype)
        found[inside] = self.memory.read(at[inside])
        return to_double(found, self.map.dtype).reshape(self.map.box[1::-1])

    def store(self, coordinates: Sequence[int], lines: npt.NDArray[np.float64]) -> None:
        """A box from [line][element]. As on the GPU, the last 16 bytes of a line are written whole."""
        at, inside = self._box(coordinates)
        assert lines.shape == self.map.box[1::-1]
        bits = to_bits(np.ascontiguousarray(lines), self.map.dtype).reshape(inside.shape)
        self.memory.write(at[inside], bits[inside])
        along = np.arange(coordinates[0], coordinates[0] + self.map.box[0])
        per_vector = 16 // self.map.dtype.itemsize
        is_past = (along >= self.map.sizes[0]) & (along < -(-self.map.sizes[0] // per_vector) * per_vector)
        self.memory.spoil(at[inside.any(axis=-1, keepdims=True) & is_past])


# The kernels.


def unpacked(stage: Stage, layout: str, offset: int = 0) -> list[int]:
    return list(struct.unpack_from(layout, stage.arguments, offset))


def batch_index(number: int, sizes: Sequence[int]) -> list[int]:
    index = []
    for size in sizes:
        index.append(number % size)
        number //= size
    assert number == 0
    return index


def realign(stage: Stage, buffers: dict[str, Memory]) -> None:
    """kernels/realign.cu."""
    constants: dict[str, Any] = dict(stage.kernel.constants)
    copies = len(stage.arguments) // 96
    assert constants["copies"] == copies
    for i in range(copies):
        _, _, line_stride, element_stride, *rest = unpacked(stage, "<8q7I4x", 96 * i)
        batch_stride, (pitch, lines, tasks, length, segments), batch_size = rest[:3], rest[3:8], rest[8:]
        source, target = (next(x for x in stage.addresses if x.position == 96 * i + p) for p in (0, 8))
        assert (source.offset, target.buffer) == (0, "workspace")
        memory, workspace = buffers[source.buffer], buffers["workspace"]
        assert constants["batch_rank"] >= sum(n > 1 for n in batch_size)
        for task in range(tasks):
            line, segment = divmod(task, segments)
            matrix, line_of_matrix = divmod(line, lines)
            index = batch_index(matrix, batch_size)
            start = line_of_matrix * line_stride + sum(x * s for x, s in zip(index, batch_stride, strict=True))
            first = segment * 256
            if first >= length:
                continue
            count = min(256, -(-(length - first) // 8) * 8)
            to = target.offset // 2 + line * pitch + first
            assert (target.offset % 2, (line * pitch + first) % 8) == (0, 0)
            elements = np.arange(first, first + count)
            if element_stride == 1:
                ahead = (memory.address + start * 2) % 16 // 2
                available = -(-(ahead + length) // 8)
                from_vector, to_vector = first // 8, min((first + count) // 8 + 1, available)
                around = np.arange(from_vector * 8, to_vector * 8) - ahead
                found = memory.read_aligned(
                    start - ahead + from_vector * 8, to_vector - from_vector, (around >= 0) & (around < length)
                )
                found = np.concatenate([found, np.zeros(16, dtype=found.dtype)])
                bits = found[ahead : ahead + count]
            else:
                bits = np.zeros(count, dtype=memory.bits.dtype)
                inside = elements < length
                bits[inside] = memory.read(start + elements[inside] * element_stride)
            workspace.write(np.arange(to, to + count), bits)


class Work(NamedTuple):
    m: int
    n: int
    split: int
    batch: int
    first_k: int
    k_steps: int


@dataclass(frozen=True)
class Schedule:
    """scheduler.cuh."""

    tiles_m: int
    tiles_n: int
    splits: int
    batches: int
    k_steps: int  # of a split
    longer_splits: int  # the first ones, which have one step more
    band: int
    panel: int  # columns of tiles that are done before the next ones, where blocks keep to theirs

    def __len__(self) -> int:
        return self.tiles_m * self.tiles_n * self.splits * self.batches

    def __getitem__(self, index: int) -> Work:
        matrix, tile = divmod(index, self.tiles_m * self.tiles_n)
        batch, split = divmod(matrix, self.splits)
        band, within = divmod(tile, self.band * self.tiles_n)
        rows = min(self.band, self.tiles_m - band * self.band)
        first_k = split * self.k_steps + min(split, self.longer_splits)
        k_steps = self.k_steps + (split < self.longer_splits)
        return Work(band * self.band + within % rows, within // rows, split, batch, first_k, k_steps)

    def walk(self, first: int, step: int, keeps_columns: bool) -> Iterator[Work]:
        """class Walk: what one of `step` clusters does."""
        if not keeps_columns:
            yield from (self[index] for index in range(first, len(self), step))
            return
        rows = step // self.panel
        m, n = divmod(first, self.panel)
        for _ in range(first, len(self), step):
            yield Work(m, n, 0, 0, 0, self.k_steps)
            m += rows
            while m >= self.tiles_m:
                m -= self.tiles_m
                n += self.panel


def assert_columns_are_kept(works: Sequence[Work], schedule: Schedule) -> None:
    """A block has one column of each panel, and needs none of it again once it has the next one's."""
    assert len({work.n % schedule.panel for work in works}) == 1
    assert [work.n for work in works] == sorted(work.n for work in works)
    assert {(work.split, work.batch, work.first_k, work.k_steps) for work in works} == {(0, 0, 0, schedule.k_steps)}


class Tile:
    """tile.cuh: an operand's tile by rows of M (or N), made of the slices that `sharers` blocks load."""

    def __init__(self, extent: int, mn_major: bool, sharers: int, engine: Engine) -> None:
        self.mn_major, self.sharers, self.engine = mn_major, sharers, engine
        self._loaded: dict[tuple[int, ...], npt.NDArray[np.float64]] = {}
        self.panel = next(w for w in (64, 32, 16) if extent % w == 0) if mn_major else TILE_K
        self.panels = extent // self.panel if mn_major else 1
        self.lines = TILE_K if mn_major else extent
        assert self.lines % (8 * sharers) == 0
        assert engine.map.box[:2] == (self.panel, self.lines // sharers)
        assert all(n == 1 for n in engine.map.box[2:])

    def load(self, first: int, first_k: int, batch: Sequence[int]) -> npt.NDArray[np.float64]:
        key = (first, first_k, *batch)
        if key not in self._loaded:  # several tiles of the output ask for it, and always get the same
            self._loaded[key] = self._load(first, first_k, batch)
        return self._loaded[key]

    def _load(self, first: int, first_k: int, batch: Sequence[int]) -> npt.NDArray[np.float64]:
        step = self.lines // self.sharers
        panels = []
        for p in range(self.panels):
            slices = []
            for line in range(0, self.lines, step):
                along, across = (first + p * self.panel, first_k + line) if self.mn_major else (first_k, first + line)
                slices.append(self.engine.load([along, across, *batch]))
            panel = np.concatenate(slices)
            panels.append(panel.T if self.mn_major else panel)
        return np.concatenate(panels)


class Product:
    """kernels/sm90.cu."""

    def __init__(self, stage: Stage, buffers: dict[str, Memory]) -> None:
        self.stage = stage
        self.constants: dict[str, Any] = dict(stage.kernel.constants)
        c = self.constants
        fields = unpacked(stage, "<2q2i3q17i", 384)
        _, self.line_stride, self.line_count, self.line_length = fields[:4]
        self.out_batch_stride = fields[4:7]
        self.schedule = Schedule(*fields[7:15])
        rank = c["batch_rank"]
        self.batch_size, self.a_moves, self.b_moves = (fields[i : i + rank] for i in (15, 18, 21))
        engines = {each.position: Engine(each, buffers[each.buffer]) for each in stage.tensor_maps}
        assert engines.keys() == ({0, 128, 256} if c["out_store"] == Store.BOXES else {0, 128})
        assert len(engines[0].map.sizes) == len(engines[128].map.sizes) == 2 + rank
        self.a = Tile(c["tile_m"], c["a_mn_major"], 1, engines[0])
        assert c["b_extent"] >= c["tile_n"]
        self.b = Tile(c["b_extent"], c["b_mn_major"], c["cluster"], engines[128])
        self.out = engines.get(256)
        self.out_memory = buffers["out"]
        self.out_type = {"float": FLOAT32, "tilesmith::float16": FLOAT16, "tilesmith::bfloat16": BFLOAT16}[c["Output"]]
        if self.out is not None:
            assert len(self.out.map.sizes) == 2 + c["out_batch_rank"]
            assert self.out.map.dtype == self.out_type
        else:
            assert [(x.position, x.buffer, x.offset) for x in stage.addresses] == [(384, "out", 0)]
        assert stage.grid[0] % stage.cluster == 0
        assert stage.cluster == c["cluster"]

    def run(self) -> None:
        clusters = self.stage.grid[0] // self.stage.cluster
        for first in range(clusters):
            works = list(self.schedule.walk(first, clusters, self.constants["b_stays"]))
            assert works, "a cluster without work"
            if self.constants["b_stays"]:
                assert_columns_are_kept(works, self.schedule)
                assert works[0].k_steps == 1
            for work in works:
                self._compute(work)

    def _compute(self, work: Work) -> None:
        c = self.constants
        assert work.k_steps >= 1, "a consumer waits for its first step"
        batch = batch_index(work.batch, self.batch_size)
        a_batch = [x * moves for x, moves in zip(batch, self.a_moves, strict=True)]
        b_batch = [x * moves for x, moves in zip(batch, self.b_moves, strict=True)]
        first_n = work.n * c["tile_n"]
        steps = range(work.first_k, work.first_k + work.k_steps)
        b = [self.b.load(first_n, k * TILE_K, b_batch)[: c["tile_n"]] for k in steps]
        for place in range(c["cluster"]):
            first_m = (work.m * c["cluster"] + place) * c["tile_m"]
            total = np.zeros((c["tile_m"], c["tile_n"]))
            for k, b_tile in zip(steps, b, strict=True):
                total += self.a.load(first_m, k * TILE_K, a_batch) @ b_tile.T
            for row in range(0, c["tile_m"], 64):
                for column in range(0, c["tile_n"], c["chunk"]):
                    part = total[row : row + 64, column : column + c["chunk"]]
                    self._store(part, first_m + row, first_n + column, work, batch)

    def _store(self, part: npt.NDArray[np.float64], m: int, n: int, work: Work, batch: Sequence[int]) -> None:
        """epilogue.cuh: 64 rows of a chunk, staged together or by the warps."""
        along_m, by_warp = self.constants["out_along_m"], self.constants["out_by_warp"]
        assert not (along_m and by_warp)
        rows = 16 if by_warp else 64
        for row in range(0, 64, rows):
            chunk = part[row : row + rows]
            lines = chunk.T if along_m else chunk
            line, in_line = (n, m + row) if along_m else (m + row, n)
            if self.out is not None:
                if self.constants["out_is_partial"]:
                    batch = [work.split * self.schedule.batches + work.batch]
                width = self.out.map.box[0]
                assert width == min(lines.shape[1], 128 // self.out_type.itemsize)
                for at in range(0, lines.shape[1], width):
                    self.out.store([in_line + at, line, *batch], lines[:, at : at + width])
            else:
                strides = self.out_batch_stride[: len(batch)]
                start = sum(x * s for x, s in zip(batch, strides, strict=True)) + line * self.line_stride + in_line
                bits = to_bits(np.ascontiguousarray(lines), self.out_type)
                if self.constants["out_store"] == Store.VECTORS:
                    self._store_vectors(bits, start, line, in_line)
                else:
                    self._store_lines(bits, start, line, in_line)

    def _store_vectors(self, lines: Bits, start: int, first_line: int, first_in_line: int) -> None:
        assert self.constants["out_by_warp"]
        vector = 16 // self.out_type.itemsize
        count = max(min(len(lines), self.line_count - first_line), 0)
        vectors = max(min(lines.shape[1] // vector, -(-(self.line_length - first_in_line) // vector)), 0)
        at = start + np.arange(count)[:, None] * self.line_stride + np.arange(vectors) * vector
        assert not ((self.out_memory.address + at * self.out_type.itemsize) % 16).any()
        elements = at[:, :, None] + np.arange(vector)
        self.out_memory.write(elements.reshape(count, vectors * vector), lines[:count, : vectors * vector])

    def _store_lines(self, lines: Bits, start: int, first_line: int, in_line: int) -> None:
        length = lines.shape[1]
        end = min(length, self.line_length - in_line)
        count = min(len(lines), self.line_count - first_line)
        if end <= 0:
            return
        turns = np.array(lines_in_turn(len(lines), 1 if self.constants["out_by_warp"] else 4))
        turns = turns[turns < count]
        at = start + turns * self.line_stride
        if self.out_type.itemsize == 4:
            self.out_memory.write(at[:, None] + np.arange(end), lines[turns, :end])
            return
        starts_in_a_word = (self.out_memory.address + at * 2) // 2 % 2
        for alone in (0, 1):
            to, source = places_of_lanes(length, end, alone)
            own = starts_in_a_word == alone
            self.out_memory.write(at[own, None] + to, lines[turns[own, None], source])


@cache
def places_of_lanes(length: int, end: int, alone: int) -> tuple[Indices, Indices]:
    """Where the elements of a line go, and which ones these are."""
    to, source = zip(*stored_by_lanes(length, end, alone), strict=True)
    return np.array(to), np.array(source)


@cache
def lines_in_turn(lines: int, warps: int) -> list[int]:
    """The lines of a chunk in the order in which one warp, or four, store them part by part."""
    of_warp = lines // warps
    at_once = min(of_warp, 4)
    return [
        warp + part * at_once * warps + i * warps
        for warp in range(warps)
        for part in range(of_warp // at_once)
        for i in range(at_once)
    ]


@cache
def stored_by_lanes(length: int, end: int, alone: int) -> list[tuple[int, int]]:
    """Which element of a line of 16-bit values goes where. `alone`: the line starts in the middle of a word."""
    pairs = [(lane * 2 % length, lane * 2 % length + 1) for lane in range(32)]
    stores = []
    for lane, own in enumerate(pairs):
        before = pairs[max(lane - 1, 0)]
        low, high = (before[1], own[0]) if alone else own
        x = lane * 2 - alone
        if x >= 0 and x + 1 < end:
            stores += [(x, low), (x + 1, high)]
        elif 0 <= x < end:
            stores.append((x, low))
        elif x < 0:
            stores.append((0, own[0]))
        if length == 64 and alone and lane == 31 and end == length:
            stores.append((length - 1, own[1]))
    return stores


def reduce(stage: Stage, buffers: dict[str, Memory], dtype: torch.dtype) -> None:
    """kernels/reduce.cu."""
    _, _, line_stride, element_stride, *rest = unpacked(stage, "<10q5i4x")
    batch_stride, (pitch, vectors, lines, length, splits), batch_size = rest[:3], rest[3:8], rest[8:]
    (source, target) = stage.addresses
    assert (source.position, source.buffer, target.position, target.buffer) == (0, "workspace", 8, "out")
    constants = dict(stage.kernel.constants)
    at_once = stage.threads // int(constants["turns"])
    assert stage.threads % int(constants["turns"]) == 0
    assert (stage.grid[0] - 1) * at_once < vectors <= stage.grid[0] * at_once
    vector = constants["out_vector"]
    assert vector in (1, 4)
    partial, out = buffers["workspace"].widened(), buffers["out"]
    count = vectors * 4
    at = source.offset // 4 + np.arange(splits * count)
    values = to_double(partial.read(at), FLOAT32).reshape(splits, vectors // (pitch // 4), pitch).sum(axis=0)
    assert values.size == count
    for line, sums in enumerate(values):
        matrix, line_of_matrix = divmod(line, lines)
        index = batch_index(matrix, batch_size)
        start = line_of_matrix * line_stride + sum(x * s for x, s in zip(index, batch_stride, strict=True))
        if vector == 4:
            assert length % 4 == 0
            assert (out.address + start * out.itemsize) % (4 * out.itemsize) == 0
            element_stride = 1
        out.write(start + np.arange(length) * element_stride, to_bits(sums[:length].copy(), dtype))


def run(plan: Plan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """All stages of a plan. Every element of a copy, of the partial products and of `out` must be written once."""
    workspace = Memory.workspace(plan.workspace_bytes)
    buffers = {"a": Memory.of(a), "b": Memory.of(b), "out": Memory.of(out), "workspace": workspace}
    entries = [stage.kernel.entry for stage in plan.stages]
    assert entries in (["sm90"], ["realign", "sm90"], ["sm90", "reduce"], ["realign", "sm90", "reduce"])
    for stage in plan.stages:
        if stage.kernel.entry == "realign":
            realign(stage, buffers)
            assert workspace.writes.max() == 1
        elif stage.kernel.entry == "sm90":
            product = Product(stage, buffers)
            product.run()
            if product.out is not None and product.out.memory is not buffers["out"]:
                partials = product.out
                assert partials.memory.writes.max() == 1
                assert partials.memory.writes.sum() == math.prod(partials.map.sizes)
                written = np.repeat(partials.memory.writes, 2)[: len(workspace.writes)]
                assert (written * workspace.writes == 0).all(), "partial products lie over copies"
        else:
            reduce(stage, buffers, out.dtype)
    assert (buffers["out"].writes == buffers["out"].is_own).all(), "an element was written twice, or not at all"


# Tensors and their product.


def integers(*shape: int, dtype: torch.dtype = BFLOAT16) -> torch.Tensor:
    """Small ones, with which sums in float32 are exact."""
    generator = torch.Generator().manual_seed(math.prod(shape) + len(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


def placed(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype = BFLOAT16, offset: int = 0
) -> torch.Tensor:
    """Integers with these strides, from `offset` elements after an aligned address on, in the midst of NaNs."""
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    storage = torch.full((offset + reach + 24,), math.nan, dtype=dtype)
    assert storage.data_ptr() % 16 == 0
    view = storage.as_strided(tuple(shape), tuple(strides), offset)
    distinct = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
    view[distinct] = integers(*shape, dtype=dtype)[distinct]
    return view


def matrix(rows: int, columns: int, layout: str = "n", dtype: torch.dtype = BFLOAT16) -> torch.Tensor:
    return placed((rows, columns), (columns, 1) if layout == "n" else (1, rows), dtype)


def empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    """Poisoned, with these strides."""
    return placed(shape, strides, dtype, offset).fill_(math.nan)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(tuple(shape), device="meta").stride()


def assert_right(
    configuration: sm90.Configuration,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    device: Device = H200,
) -> Plan:
    """The plan of this configuration gives exactly the product, and touches nothing else."""
    expected = (a.double() @ b.double()).to(out_dtype or a.dtype)
    if out is None:
        out = empty(expected.shape, contiguous(expected.shape), expected.dtype)
    else:
        out.fill_(math.nan)
    problem = Problem.of(a, b, out=out, out_dtype=out_dtype)
    assert sm90.rejects(problem, device) is None
    plan = sm90.plan(problem, device, fitted(configuration, problem, device))
    run(plan, a, b, out)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    return plan


def fitted(configuration: sm90.Configuration, problem: Problem, device: Device) -> sm90.Configuration:
    """The same; or, where its tile is too narrow for a B by rows or to be shared, with the next one that is not; or,
    where it has too many rows for such results, with fewer."""
    tiles = sorted((-m, n) for m, n in sm90.TILES if m <= configuration.tile_m and n >= configuration.tile_n)
    found = (replace(configuration, tile_m=-m, tile_n=n) for m, n in tiles)
    return next(c for c in found if sm90.unsuited(problem, device, c) is None)


def offered(a: torch.Tensor, b: torch.Tensor, device: Device = H200) -> list[sm90.Configuration]:
    """What the planner considers for a product."""
    problem = Problem.of(a, b)
    found = [c for c in sm90.configurations(problem, device) if sm90.unsuited(problem, device, c) is None]
    assert found
    return found


SMALL = sm90.Configuration(64, 32)
# One of each kind: narrow and wide panels, one to three consumers, clusters, splits, the transposed product.
VARIED = [
    SMALL,
    sm90.Configuration(64, 16, cluster=2),
    sm90.Configuration(64, 96),
    sm90.Configuration(128, 64, cluster=2),
    sm90.Configuration(192, 160, cluster=2),
    sm90.Configuration(64, 48 * 2, splits=2),
    sm90.Configuration(64, 32, swap=True),
    sm90.Configuration(128, 32, cluster=2, splits=2, swap=True),
]
LAYOUTS = ["nn", "nt", "tn", "tt"]


# Every tile, layout and kind of work.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile", sm90.TILES, ids=lambda tile: "{}x{}".format(*tile))
def test_every_tile_and_layout_with_edges(tile: tuple[int, int], layout: str) -> None:
    a, b = matrix(136, 72, layout[0]), matrix(72, 264, "t" if tile[1] == 8 else layout[1])
    for cluster in (1,) if tile[1] == 8 else (1, 2):
        c = sm90.Configuration(*tile, cluster)
        assert sm90.unsuited(Problem.of(a, b), H200, c) is None
        assert_right(c, a, b)
        assert_right(replace(c, splits=2), a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_that_the_planner_offers(layout: str) -> None:
    for m, k, n in [(72, 328, 136), (24, 640, 72)]:
        a, b = matrix(m, k, layout[0]), matrix(k, n, layout[1])
        configurations = offered(a, b)
        assert {c.swap for c in configurations} == {False, True}
        assert {c.cluster for c in configurations} == {1, 2}
        if k >= 640:
            assert max(c.splits for c in configurations) > 1
        for c in configurations:
            assert_right(c, a, b)


@pytest.mark.parametrize("out_dtype", [None, FLOAT32], ids=str)
@pytest.mark.parametrize("c", VARIED, ids=str)
def test_odd_sizes_in_all_layouts_are_realigned(c: sm90.Configuration, out_dtype: torch.dtype | None) -> None:
    for layout in LAYOUTS:
        a, b = matrix(69, 75, layout[0]), matrix(75, 99, layout[1])
        plan = assert_right(c, a, b, out_dtype=out_dtype)
        assert plan.stages[0].kernel.entry == "realign"
        assert dict(plan.stages[0].kernel.constants)["copies"] == 2


@pytest.mark.parametrize("m", [1, 2, 8, 63, 65])
@pytest.mark.parametrize("n", [1, 3, 8, 31, 33])
@pytest.mark.parametrize("k", [1, 5, 64, 65])
def test_single_rows_columns_and_steps(m: int, n: int, k: int) -> None:
    for layout in LAYOUTS:
        a, b = matrix(m, k, layout[0]), matrix(k, n, layout[1])
        for c in (SMALL, replace(SMALL, swap=True), replace(SMALL, cluster=2)):
            assert_right(c, a, b)
    a, b = matrix(m, k), matrix(k, n)
    for c in offered(a, b):
        assert_right(c, a, b)


@pytest.mark.parametrize("c", VARIED, ids=str)
@pytest.mark.parametrize("band", ["few tiles", "many tiles"])
def test_blocks_with_several_tiles_cover_each_of_them_once(c: sm90.Configuration, band: str) -> None:
    m, n = (150, 200) if band == "few tiles" else (1300, 40)
    a, b = matrix(m, 136), matrix(136, n)
    plan = assert_right(c, a, b, device=FEW_SMS)
    assert plan.product.grid[0] in (4, 5)


@pytest.mark.parametrize("splits", [2, 3, 5, 7])
def test_parts_of_k_need_not_be_equal(splits: int) -> None:
    a, b = matrix(70, 64 * 6 + 9, "t"), matrix(64 * 6 + 9, 40)
    for c in (SMALL, sm90.Configuration(64, 64, cluster=2), sm90.Configuration(128, 32, swap=True)):
        plan = assert_right(replace(c, splits=splits), a, b)
        assert plan.splits == splits
        assert_right(replace(c, splits=splits), a, b, out_dtype=FLOAT32)


def test_one_vector_times_one_vector() -> None:
    for k in (1, 8, 9, 200):
        a, b = placed((k,), (1,)), placed((k,), (2,))
        for c in offered(a, b):
            assert_right(c, a, b)


# Strides of operands.


@pytest.mark.parametrize(
    ("strides", "offset"),
    [
        ((80, 1), 0),
        ((80, 1), 8),
        ((80, 1), 1),  # odd addresses
        ((77, 1), 0),
        ((77, 1), 3),
        ((79, 1), 7),
        ((160, 2), 0),  # every other element
        ((3, 217), 1),
        ((1, 80), 0),
        ((1, 77), 5),
        ((2, 154), 0),
        ((1, 1), 0),  # a window that slides
        ((8, 1), 0),
        ((1, 8), 0),
    ],
)
def test_operands_with_any_strides(strides: tuple[int, int], offset: int) -> None:
    for rows in (72, 70):
        own = placed((rows, rows), strides, offset=offset)
        for c in (SMALL, sm90.Configuration(128, 64, cluster=2, swap=True)):
            assert_right(c, own, matrix(rows, 40))
            assert_right(c, matrix(40, rows), own)
            assert_right(c, own, own.T)


def test_views_as_slicing_makes_them() -> None:
    base, other = matrix(150, 160), matrix(160, 170)
    for a in (base[3:, 5:75], base[::2, 1:71], base[:, ::2][:, :70], base[1:, :70], base.T[7:, :70], base[:, 8:78]):
        for b in (other[:70, 3:], other[5:75, ::3], other.T[9:79, 1:], other[0:70], other[:70, :1], other[:70, 169:]):
            for c in (SMALL, sm90.Configuration(64, 64, cluster=2, swap=True)):
                assert_right(c, a, b)


@pytest.mark.parametrize("length", [255, 256, 257, 1030])
@pytest.mark.parametrize("offset", [0, 1, 7])
def test_lines_of_several_segments_are_realigned(length: int, offset: int) -> None:
    a, b = placed((3, length), (length + 3, 1), offset=offset), placed((length, 8), (8, 1))
    assert_right(SMALL, a, b)
    assert_right(replace(SMALL, splits=3), a, b)
    assert_right(replace(SMALL, swap=True), placed((5, 9), (9, 1)), placed((9, length), (length, 1), offset=offset))


# Batches.


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 40, 24), (3, 24, 40)),
        ((3, 37, 21), (3, 21, 35)),
        ((3, 40, 24), (24, 40)),
        ((40, 24), (3, 24, 40)),
        ((37, 21), (3, 21, 35)),
        ((2, 1, 40, 24), (3, 24, 40)),
        ((3, 40, 24), (2, 1, 24, 40)),
        ((3, 37, 21), (2, 1, 21, 35)),
        ((2, 1, 37, 21), (3, 21, 35)),
        ((3, 1, 40, 24), (2, 1, 4, 24, 40)),
        ((3, 1, 37, 21), (2, 1, 4, 21, 35)),
        ((2, 1, 4, 40, 24), (3, 1, 24, 40)),
        ((2, 3, 4, 40, 24), (2, 3, 4, 24, 40)),
        ((5, 1, 21), (5, 21, 35)),
        ((21,), (5, 21, 35)),
        ((5, 37, 21), (21,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("c", [c for c in VARIED if c.splits == 1], ids=str)
def test_batches_and_broadcasting(c: sm90.Configuration, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = (placed(shape, contiguous(shape)) for shape in (a, b))
    assert_right(c, x, y)
    assert_right(c, x, y, out_dtype=FLOAT32, device=FEW_SMS)


@pytest.mark.parametrize("gap", [0, 8, 3])
def test_batches_with_gaps_transposes_and_expanded_dimensions(gap: int) -> None:
    a = placed((2, 3, 40, 136), (3 * (40 * 136 + gap), 40 * 136 + gap, 136, 1))
    b = placed((3, 136, 24), (24 * 136 + gap, 1, 136))
    for c in VARIED:
        plan = assert_right(c, a, b)
        assert plan.problem.batch == (2, 3)
        assert_right(c, a.transpose(0, 1).expand(3, 2, 40, 136), b.unsqueeze(1).expand(3, 2, 136, 24))
        assert_right(c, a[:, :1].expand(2, 3, 40, 136), b)
        assert_right(c, a, b[1:2].expand(3, 136, 24))


def test_rows_that_a_batch_became() -> None:
    b = placed((24, 40), (40, 1))
    for a in (
        placed((5, 7, 24), contiguous((5, 7, 24))),
        placed((5, 1, 24), (25, 24, 1)),
        placed((5, 7, 24), (400, 24, 1)),
    ):
        for c in (SMALL, replace(SMALL, cluster=2), replace(SMALL, swap=True)):
            assert_right(c, a, b)


# Outputs.


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize(
    ("strides", "offset"),
    [
        ((88, 1), 0),
        ((88, 1), 8),
        ((88, 1), 1),
        ((88, 1), 4),
        ((75, 1), 0),
        ((75, 1), 1),
        ((78, 1), 0),
        ((1, 88), 0),
        ((1, 75), 0),
        ((1, 75), 1),
        ((1, 76), 2),
        ((150, 2), 0),
        ((3, 300), 1),
    ],
)
def test_outputs_with_any_strides(strides: tuple[int, int], offset: int, dtype: torch.dtype) -> None:
    operands = FLOAT16 if dtype == FLOAT16 else BFLOAT16
    out_dtype = FLOAT32 if dtype == FLOAT32 else None
    for size in (72, 75, 70):
        a, b = matrix(size, 136, dtype=operands), matrix(136, size, dtype=operands)
        out = empty((size, size), strides, dtype, offset)
        for c in VARIED:
            assert_right(c, a, b, out, out_dtype)


@pytest.mark.parametrize("tile", sm90.TILES, ids=lambda tile: "{}x{}".format(*tile))
@pytest.mark.parametrize("along_m", [False, True])
def test_every_tile_stores_by_its_threads(tile: tuple[int, int], along_m: bool) -> None:
    """Lines that start in the middle of a word, and end anywhere in a chunk."""
    a, b = matrix(131, 64), matrix(64, 259, "t")
    out = empty((131, 259), (1, 133) if along_m else (261, 1), BFLOAT16, 1)
    plan = assert_right(sm90.Configuration(*tile), a, b, out)
    assert dict(plan.product.kernel.constants)["out_store"] == Store.LINES
    wide = empty((131, 259), (1, 133) if along_m else (261, 1), FLOAT32, 1)
    assert_right(sm90.Configuration(*tile), a, b, wide, FLOAT32)


@pytest.mark.parametrize("width", [8, 30, 64, 70, 72, 130, 200, 256, 261])
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32], ids=str)
def test_products_that_only_store_stay_inside_of_their_lines(width: int, dtype: torch.dtype) -> None:
    """One step along K, and lines that start aligned wherever they end."""
    for rows, gap in itertools.product((1, 70), (0, 8, 16)):
        pitch = -(-width // 8) * 8 + gap
        a, b = matrix(rows, 64), matrix(64, width)
        out = empty((rows, width), (pitch, 1), dtype)
        for n in (256, 192, 128, 64):
            for c in (sm90.Configuration(64, n), sm90.Configuration(64, n, swap=True)):
                assert_right(c, a, b, out, dtype, FEW_SMS)


@pytest.mark.parametrize("width", [640, 630, 704, 1280])
def test_blocks_that_keep_their_columns_take_panel_after_panel(width: int) -> None:
    """There are more columns of tiles than blocks, and only some numbers of them make panels of equal size."""
    a, b = matrix(200, 64), matrix(64, width)
    plan = assert_right(sm90.Configuration(64, 64), a, b, device=FEW_SMS)
    c = dict(plan.product.kernel.constants)
    assert c["out_store"] == Store.VECTORS if width % 8 == 0 else Store.LINES
    assert c["b_stays"] == (width != 704)  # eleven tiles side by side


def test_warps_store_every_line_once() -> None:
    for lines, warps in [(16, 1), (8, 4), (16, 4), (32, 4), (64, 4)]:
        assert sorted(lines_in_turn(lines, warps)) == list(range(lines))


def test_lanes_store_every_element_of_a_line_in_its_place_and_once() -> None:
    for length, alone in itertools.product((8, 16, 32, 64), (0, 1)):
        for end in range(1, length + 1):
            assert sorted(stored_by_lanes(length, end, alone)) == [(x, x) for x in range(end)], (length, end, alone)


def stored_fragments(tile_n: int, chunk: int, first_m: int, first_n: int) -> dict[tuple[int, int], list[Any]]:
    """store_fragment of epilogue.cuh for a warp: what goes to each vector of four, named by row and column. What is
    stored is named likewise: what a thread holds of the tile's 16 rows."""
    held = [
        {
            4 * j + 2 * h + e: (lane // 4 + 8 * h, 8 * j + 2 * (lane % 4) + e)
            for j, h, e in np.ndindex(tile_n // 8, 2, 2)
        }
        for lane in range(32)
    ]
    stores: dict[tuple[int, int], list[Any]] = {}
    for first, lane in itertools.product(range(0, tile_n, chunk), range(32)):
        odd, own, other = lane % 2, held[lane], held[lane ^ 1]
        m, n = first_m + lane // 4, first_n + first + 8 * odd + lane % 4 // 2 * 4
        for j, h in itertools.product(range(0, chunk, 16), range(2)):
            left = (first + j) // 2 + 2 * h
            right = left + 4
            exchanged = [
                other[(right if odd else left) + e] for e in range(2)
            ]  # the neighbour is odd if this one is not
            four = (
                exchanged + [own[right + e] for e in range(2)] if odd else [own[left + e] for e in range(2)] + exchanged
            )
            assert (m + 8 * h, n + j) not in stores
            stores[m + 8 * h, n + j] = four
    return stores


@pytest.mark.parametrize("tile_n", [32, 64, 96, 128, 192, 256])
def test_fragments_that_are_stored_directly_go_where_they_belong(tile_n: int) -> None:
    stores = stored_fragments(tile_n, 32, 48, 3 * tile_n)
    assert sorted(stores) == list(itertools.product(range(48, 64), range(3 * tile_n, 4 * tile_n, 4)))
    for (m, n), four in stores.items():
        assert four == [(m - 48, n - 3 * tile_n + i) for i in range(4)]


@pytest.mark.parametrize("gap", [0, 8, 1])
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_outputs_with_batches_in_any_order_of_dimensions(order: tuple[int, ...], gap: int) -> None:
    shape, strides, step = (2, 3, 40, 24), [0] * 4, 1
    for dimension in order:
        strides[dimension] = step
        step = step * shape[dimension] + gap
    a, b = placed((2, 1, 40, 72), contiguous((2, 1, 40, 72))), placed((3, 72, 24), contiguous((3, 72, 24)))
    out = empty(shape, strides, BFLOAT16)
    for c in (SMALL, replace(SMALL, swap=True), replace(SMALL, splits=2, cluster=2)):
        assert_right(c, a, b, out)


# The schedule by itself.


@pytest.mark.parametrize("band", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("clusters", [1, 7])
def test_the_schedule_visits_every_tile_of_every_part_once(band: int, clusters: int) -> None:
    for tiles_m, tiles_n, splits, batches in itertools.product((1, 2, 5, 9), (1, 3, 4), (1, 2, 3), (1, 2)):
        schedule = Schedule(tiles_m, tiles_n, splits, batches, *divmod(7, splits), band, tiles_n)
        works = [work for first in range(clusters) for work in schedule.walk(first, clusters, keeps_columns=False)]
        visited = [(w.m, w.n, w.split, w.batch) for w in works]
        assert sorted(visited) == list(itertools.product(*map(range, (tiles_m, tiles_n, splits, batches))))
        for split in range(splits):
            parts = {(w.first_k, w.k_steps) for w in works if w.split == split}
            assert len(parts) == 1
        steps = sorted({(w.first_k, w.k_steps) for w in works})
        assert [first for first, _ in steps] == list(itertools.accumulate((n for _, n in steps[:-1]), initial=0))
        assert sum(n for _, n in steps) == 7


def test_blocks_that_keep_their_columns_visit_every_tile_once() -> None:
    """However many rows of a panel the blocks have at once: they end within a panel, or go on in the next one."""
    for tiles_m, panel, panels, rows in itertools.product((1, 2, 3, 5, 12), (1, 3, 4), (1, 2, 3), (1, 2, 3, 5)):
        if rows > tiles_m:
            continue  # such plans do not exist: see the next test
        schedule = Schedule(tiles_m, panel * panels, 1, 1, 1, 0, 1, panel)
        visited = []
        for first in range(rows * panel):
            works = list(schedule.walk(first, rows * panel, keeps_columns=True))
            assert_columns_are_kept(works, schedule)
            visited += [(work.m, work.n) for work in works]
        assert sorted(visited) == list(itertools.product(range(tiles_m), range(panel * panels)))


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("sm_count", [132, 114, 78, 7])
def test_plans_have_grids_with_which_blocks_can_keep_their_columns(sm_count: int, dtype: torch.dtype) -> None:
    """Whole rows of a panel, and all blocks start inside of the first panel."""
    device = replace(H200, sm_count=sm_count)
    seen, known = set(), set()
    sizes = [1, 1000, 32768, *(tiles * 64 for tiles in (sm_count, sm_count + 1, 2 * sm_count, 300))]
    for m, n in itertools.product((1, 64, 200, 3000), sizes):
        a, b = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((m, 64), (64, n)))
        problem = Problem.of(a, b)
        for c in sm90.configurations(problem, device):
            if sm90.unsuited(problem, device, c) is not None:
                continue
            stage = sm90.plan(problem, device, c).product
            if not dict(stage.kernel.constants)["b_stays"]:
                continue
            schedule = Schedule(*unpacked(stage, "<8i", 432))
            blocks = stage.grid[0]
            assert (stage.cluster, schedule.splits, schedule.batches, schedule.k_steps) == (1, 1, 1, 1)
            assert (schedule.tiles_n % schedule.panel, blocks % schedule.panel) == (0, 0)
            assert blocks // schedule.panel <= schedule.tiles_m
            if (schedule, blocks) in known:
                continue
            known.add((schedule, blocks))
            visits = np.zeros((schedule.tiles_m, schedule.tiles_n), dtype=int)
            for first in range(blocks):
                works = list(schedule.walk(first, blocks, keeps_columns=True))
                assert_columns_are_kept(works, schedule)
                np.add.at(visits, ([work.m for work in works], [work.n for work in works]), 1)
            assert (visits == 1).all()
            seen.add((schedule.panel < schedule.tiles_n, blocks < len(schedule)))
    assert seen == {(False, False), (False, True), (True, True)}


# Anything.


@st.composite
def strides_for(draw: st.DrawFn, shape: Sequence[int], may_expand: bool) -> tuple[list[int], int]:
    """Strides in which no two elements meet, in any order of the dimensions, with gaps; and an offset. The common
    ones are multiples of 8 where they can be. Operands may also be expanded: any dimension may have the stride 0."""
    strides = [0] * len(shape)
    step = draw(st.sampled_from([1, 1, 1, 1, 2, 3]))
    is_aligned = draw(st.booleans())
    for dimension in draw(st.permutations(range(len(shape)))):
        strides[dimension] = step
        step = step * shape[dimension] + draw(st.sampled_from([0, 0, 0, 1, 4, 5]))
        if is_aligned:
            step = -(-step // 8) * 8
    if may_expand and draw(st.integers(0, 4)) == 0:
        strides[draw(st.integers(0, len(shape) - 1))] = 0
    return strides, draw(st.sampled_from([0, 0, 0, 8, 1, 2, 4, 7]))


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Batch dimensions of a and b that broadcast."""
    batch = draw(st.lists(st.integers(1, 3), max_size=3))

    def part() -> list[int]:
        ones = [size if draw(st.booleans()) else 1 for size in batch]
        return ones[draw(st.integers(0, len(ones))) :]

    return part(), part()


sizes = st.one_of(st.integers(1, 9), st.integers(1, 150), st.sampled_from([8, 64, 72, 128, 136]))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data(), m=sizes, k=sizes, n=sizes, batch=batches())
def test_any_shapes_and_strides(
    data: st.DataObject, m: int, k: int, n: int, batch: tuple[list[int], list[int]]
) -> None:
    dtype = data.draw(st.sampled_from([BFLOAT16, FLOAT16]))
    out_dtype = data.draw(st.sampled_from([None, None, FLOAT32]))
    device = data.draw(st.sampled_from([H200, FEW_SMS]))

    def operand(shape: list[int]) -> torch.Tensor:
        strides, offset = data.draw(strides_for(shape, may_expand=True))
        return placed(shape, strides, dtype, offset)

    a, b = operand([*batch[0], m, k]), operand([*batch[1], k, n])
    shape = [*torch.broadcast_shapes(batch[0], batch[1]), m, n]
    strides, offset = data.draw(strides_for(shape, may_expand=False))
    out = empty(shape, strides, out_dtype or dtype, offset)
    problem = Problem.of(a, b, out=out, out_dtype=out_dtype)
    if reason := sm90.rejects(problem, device):
        assert "repeats" in reason
        assert 0 in (*a.stride(), *b.stride())
        return
    legal = [c for c in sm90.configurations(problem, device) if sm90.unsuited(problem, device, c) is None]
    assert legal
    assert_right(data.draw(st.sampled_from(legal)), a, b, out, out_dtype, device)
    # One that the planner does not consider for so small a product, but could.
    tile = data.draw(st.sampled_from(sm90.TILES))
    more = sm90.Configuration(
        *tile,
        cluster=data.draw(st.sampled_from([1, 2])),
        splits=data.draw(st.sampled_from([1, 1, 2])),
        swap=data.draw(st.booleans()),
    )
    if more.splits <= math.ceil(k / TILE_K):
        assert_right(more, a, b, out, out_dtype, device)
