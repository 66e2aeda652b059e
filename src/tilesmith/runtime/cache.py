"""Compiled kernels on disk, addressed by everything that went into them.

An entry is written aside and renamed into place, so that processes which start together see
a whole entry or none. It carries a digest of its content: what is truncated or foreign is
compiled again. It says of which kernel it is, for people; entries of earlier versions do not.
A directory that cannot be used costs a warning, once, and nothing else.

    the magic; a digest of what follows; the length of the words about it; these, as JSON; the code
"""

import contextlib
import hashlib
import json
import os
import stat
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tilesmith.core.cache_dir import directory
from tilesmith.core.plan import Kernel
from tilesmith.runtime import compiler
from tilesmith.runtime.source import headers

_MAGIC: Final = b"tilesmith-cubin-2\n"
_MAGIC_WITHOUT_WORDS: Final = b"tilesmith-cubin-1\n"
_LENGTH: Final = struct.Struct("<H")
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_WORDS_AT: Final = len(_MAGIC) + _DIGEST_BYTES
_SUFFIX: Final = ".cubin"
_UNFINISHED: Final = ".part"
EMULATED: Final = ".emulated"  # kernels for the CPU
ARCHIVE: Final = ".archive"  # of kernels that were compiled ahead


@dataclass(frozen=True, slots=True)
class About:
    """What an entry says of itself. Nothing depends on it."""

    kernel: str = ""  # its function
    tile: str = ""  # "" if it has none
    arch: str = ""

    @classmethod
    def of(cls, kernel: Kernel, arch: str) -> "About":
        return cls(kernel.entry, kernel.tile, arch)


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled kernel in the cache."""

    path: Path
    size: int
    used: float  # seconds since the epoch
    made: float
    about: About

    @property
    def is_emulated(self) -> bool:
        """Whether it is for the CPU."""
        return self.path.suffix == EMULATED


def cubin(
    source: str, arch: str, compile: Callable[[str, str], bytes] = compiler.compile, about: About | None = None
) -> bytes:
    """The cubin of a translation unit: from the cache, or compiled and kept."""
    return kept(key(source, arch), _SUFFIX, lambda: compile(source, arch), about or About(arch=arch))


def kept(key: str, suffix: str, make: Callable[[], bytes], about: About) -> bytes:
    """What the cache has under a key, or else what `make` makes, which is kept."""
    path = directory() / (key + suffix)
    found = _read(path)
    if found is not None:
        return found
    fresh = make()
    _write(path, fresh, about)
    return fresh


def key(source: str, arch: str) -> str:
    """A digest of the source, the headers, the options, the architecture and NVRTC's version."""
    return _digest(*_ingredients(source, arch), *map(str, compiler.version()))


def content_key(source: str, arch: str) -> str:
    """The same without NVRTC's version: whoever compiled it, it is this kernel."""
    return _digest(*_ingredients(source, arch))


def sources_digest() -> str:
    """A digest of what all kernels have in common: the headers and the options."""
    return _digest(*_ingredients("", ""))


def _ingredients(source: str, arch: str) -> tuple[str, ...]:
    return (source, _headers_digest(), *compiler.OPTIONS, arch)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def entries() -> Iterator[Entry]:
    """What is in the cache, in no order."""
    with contextlib.suppress(OSError):
        for path in (*directory().glob("*" + _SUFFIX), *directory().glob("*" + EMULATED)):
            with contextlib.suppress(OSError):
                status = path.stat()
                yield Entry(path, status.st_size, max(status.st_atime, status.st_mtime), status.st_mtime, _about(path))


def clear() -> int:
    """Removes every entry, every unfinished one and every archive, and says how many entries there were."""
    removed = 0
    for entry in list(entries()):
        with contextlib.suppress(OSError):
            entry.path.unlink()
            removed += 1
    for leftover in (*directory().glob("*" + _UNFINISHED), *directory().glob("*" + ARCHIVE)):
        with contextlib.suppress(OSError):
            leftover.unlink()
    return removed


@cache
def _headers_digest() -> str:
    return _digest(*(part for item in headers().items() for part in item))


def _read(path: Path) -> bytes | None:
    try:
        if not is_private(path.parent):
            return None
        content = path.read_bytes()
    except OSError:
        return None
    magic, digest, body = content[: len(_MAGIC)], content[len(_MAGIC) : _WORDS_AT], content[_WORDS_AT:]
    if hashlib.sha256(body).digest() != digest:
        return None
    if magic == _MAGIC:
        return body[_LENGTH.size + _LENGTH.unpack_from(body)[0] :]
    return body if magic == _MAGIC_WITHOUT_WORDS else None


def _about(path: Path) -> About:
    """What an entry says of itself; nothing if it is of another format. Only its beginning is read."""
    with (
        contextlib.suppress(OSError, ValueError, TypeError, struct.error),
        open(path, "rb", opener=_opened_unused) as file,
    ):
        if file.read(_WORDS_AT).startswith(_MAGIC):
            words = file.read(*_LENGTH.unpack(file.read(_LENGTH.size)))
            return About(**json.loads(words))
    return About()


def _opened_unused(path: str, flags: int) -> int:
    """To look at an entry is not to use it."""
    return os.open(path, flags | getattr(os, "O_NOATIME", 0))


def _write(path: Path, code: bytes, about: About) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(path.parent):
            raise PermissionError(f"{path.parent} belongs to another user or others may write to it")
        words = json.dumps(asdict(about)).encode()
        body = _LENGTH.pack(len(words)) + words + code
        put(path, _MAGIC + hashlib.sha256(body).digest() + body)
    except OSError as error:
        _warn_once(path.parent, error)


def put(path: Path, content: bytes) -> None:
    """Writes a file aside and renames it into place: others see the whole of it or nothing."""
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def is_private(folder: Path) -> bool:
    """Code is loaded from here: it must be the user's own, and no one else may write to it."""
    status = folder.stat()
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.getuid() and not others_write


_warned: set[Path] = set()


def _warn_once(folder: Path, reason: OSError) -> None:
    if folder in _warned:
        return
    _warned.add(folder)
    warnings.warn(
        f"Tilesmith cannot keep compiled kernels in {folder} ({reason}); "
        "every process will compile them anew. Set XDG_CACHE_HOME to a directory of yours.",
        RuntimeWarning,
        stacklevel=2,
    )
