"""Kernels that were compiled ahead: one file for each architecture, which a wheel carries or `tilesmith build` writes.

A kernel is found by a digest of its text, the headers, the options and the architecture, so what other sources were
compiled to is not found, and NVRTC need not be here. Kernels that resemble each other are compressed together, a few at
a time. The index is read once, and of the rest only what is asked for. All that is read has a digest: a damaged file
costs a warning, and its kernels are compiled.

    the magic; the index's length and digest; the index; blocks of compressed cubins
    index: the architecture, a digest of the sources, counts; of each block its place, length and digest; of each
           kernel its digest, and the block, place and length of its cubin
"""

import hashlib
import lzma
import os
import struct
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from tilesmith.core import package
from tilesmith.core.cache_dir import directory
from tilesmith.core.plan import Kernel
from tilesmith.core.recent import Recent
from tilesmith.core.threads import at_once
from tilesmith.runtime import cache as disk
from tilesmith.runtime import source

_FOLDER: Final = "archives"  # of the package
_MAGIC: Final = b"tilesmith-archive-1\n"
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_HEAD: Final = struct.Struct(f"<Q{_DIGEST_BYTES}s")
_FACTS: Final = struct.Struct(f"<16s{_DIGEST_BYTES}sII")  # the architecture; the sources; how many blocks and kernels
_BLOCK: Final = struct.Struct(f"<QI{_DIGEST_BYTES}s")
_KERNEL: Final = struct.Struct(f"<{_DIGEST_BYTES}sIII")

# A cubin of 45 KB takes 9 KB when it is compressed alone, 6.5 KB with another like it and 5 KB with three; but then all
# of them are decompressed for one, which takes half a millisecond for each.
_KERNELS_A_BLOCK: Final = 2
_MAX_DECOMPRESSED_BLOCKS: Final = 4
_FILTERS: Final[list[dict[str, Any]]] = [
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 4 << 20}
]


class DamagedArchiveError(Exception):
    """A file is no archive, or not a whole one."""


class Archive:
    """An archive that is open for reading, by any number of threads.

    Raises DamagedArchiveError, or OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # what is renamed into its place is another archive
        weakref.finalize(self, os.close, self._file)
        self._blocks: list[tuple[int, int, bytes]] = []
        self._places: dict[bytes, tuple[int, int, int]] = {}
        self._decompressed: Recent[int, bytes] = Recent(_MAX_DECOMPRESSED_BLOCKS)
        try:
            self._read_index()
        except struct.error as error:
            raise DamagedArchiveError("its index is cut off") from error

    def __len__(self) -> int:
        return len(self._places)

    @property
    def is_current(self) -> bool:
        """Whether it was built of the sources that are here; otherwise it has no kernel of theirs."""
        return self._sources == disk.sources_digest()

    def cubin(self, key: str) -> bytes | None:
        """The cubin of the kernel with this `cache.content_key`, if it is here."""
        place = self._places.get(bytes.fromhex(key))
        if place is None:
            return None
        number, start, size = place
        block = self._decompressed.get(number)
        if block is None:
            block = self._decompressed[number] = self._block(number)
        return block[start : start + size]

    def _block(self, number: int) -> bytes:
        position, size, digest = self._blocks[number]
        compressed = self._checked(position, size, digest)
        return lzma.decompress(compressed, lzma.FORMAT_RAW, filters=_FILTERS)

    def _read_index(self) -> None:
        head = self._read(0, len(_MAGIC) + _HEAD.size)
        if not head.startswith(_MAGIC):
            raise DamagedArchiveError("it is of another format")
        size, digest = _HEAD.unpack_from(head, len(_MAGIC))
        index = self._checked(len(head), size, digest)
        arch, sources, blocks, kernels = _FACTS.unpack_from(index)
        self.arch = arch.rstrip(b"\0").decode()
        self._sources: str = sources.hex()
        first, end = _FACTS.size, _FACTS.size + blocks * _BLOCK.size
        self._blocks = list(_BLOCK.iter_unpack(index[first:end]))
        for key, *place in _KERNEL.iter_unpack(index[end : end + kernels * _KERNEL.size]):
            self._places[key] = tuple(place)

    def _checked(self, position: int, size: int, digest: bytes) -> bytes:
        content = self._read(position, size)
        if hashlib.sha256(content).digest() != digest:
            raise DamagedArchiveError("its content is not what was written")
        return content

    def _read(self, position: int, size: int) -> bytes:
        if position + size > os.fstat(self._file).st_size:
            raise DamagedArchiveError("its end is missing")
        return os.pread(self._file, size, position)


def packed(cubins: Mapping[Kernel, bytes], arch: str) -> bytes:
    """The archive of kernels. The same kernels give the same bytes, in whatever order they come."""
    texts = sorted((kernel.source, source.render(kernel), cubin) for kernel, cubin in cubins.items())
    groups = list(_together(texts))
    contents = at_once(_compressed, groups)
    places = []
    for number, several in enumerate(groups):
        start = 0
        for _, text, cubin in several:
            key = bytes.fromhex(disk.content_key(text, arch))
            places.append(_KERNEL.pack(key, number, start, len(cubin)))
            start += len(cubin)
    index_size = _FACTS.size + len(contents) * _BLOCK.size + len(places) * _KERNEL.size
    position = len(_MAGIC) + _HEAD.size + index_size
    blocks = []
    for content in contents:
        blocks.append(_BLOCK.pack(position, len(content), hashlib.sha256(content).digest()))
        position += len(content)
    facts = _FACTS.pack(arch.encode(), bytes.fromhex(disk.sources_digest()), len(blocks), len(places))
    index = b"".join([facts, *blocks, *places])
    return b"".join([_MAGIC, _HEAD.pack(len(index), hashlib.sha256(index).digest()), index, *contents])


_Compiled = tuple[str, str, bytes]  # a kernel's source file, its text, and its cubin


def _together(texts: list[_Compiled]) -> Iterator[list[_Compiled]]:
    """Kernels of one source file with much the same constants, as many as are compressed together."""
    for _, of_a_file in groupby(texts, key=lambda each: each[0]):
        several = list(of_a_file)
        for i in range(0, len(several), _KERNELS_A_BLOCK):
            yield several[i : i + _KERNELS_A_BLOCK]


def _compressed(several: list[_Compiled]) -> bytes:
    return lzma.compress(b"".join(cubin for *_, cubin in several), lzma.FORMAT_RAW, filters=_FILTERS)


def users_file(arch: str) -> Path:
    """Where `tilesmith build` writes the archive of an architecture."""
    return directory() / f"{arch}{disk.ARCHIVE}"


def find(kernel: Kernel, arch: str) -> bytes | None:
    """The cubin of a kernel from the package's archive or the user's, if there is one that has it."""
    archives = [archive for archive in installed(arch) if archive.is_current]
    if not archives:
        return None
    key = disk.content_key(source.render(kernel), arch)
    for archive in archives:
        try:
            cubin = archive.cubin(key)
        except (DamagedArchiveError, lzma.LZMAError, OSError) as error:
            _warn_once(archive.path, error)
            continue
        if cubin is not None:
            return cubin
    return None


def installed(arch: str) -> list[Archive]:
    """The archives of an architecture that are here: the package's and the user's."""
    packages = Path(str(package.files())) / _FOLDER / f"{arch}{disk.ARCHIVE}"
    found = (_opened(packages, is_own=False), _opened(users_file(arch), is_own=True))
    return [archive for archive in found if archive is not None]


@cache
def _opened(path: Path, *, is_own: bool) -> Archive | None:
    """An archive, if there is a file that is one. In a directory of the user's it must be the user's alone: code is
    loaded from it."""
    try:
        return Archive(path) if not is_own or disk.is_private(path.parent) else None
    except FileNotFoundError:
        return None
    except (DamagedArchiveError, OSError) as error:
        _warn_once(path, error)
        return None


_warned: set[Path] = set()
_warning = threading.Lock()


def _warn_once(path: Path, reason: Exception) -> None:
    with _warning:
        if path in _warned:
            return
        _warned.add(path)
    warnings.warn(
        f"Tilesmith cannot read compiled kernels from {path}: {reason}. They are compiled anew when they are needed. "
        "Install the package again, or run `tilesmith build`.",
        RuntimeWarning,
        stacklevel=2,
    )
