"""Compiled kernels on disk, addressed by everything that went into them.

An entry is written aside and renamed into place, so that processes which start together see
a whole entry or none. It carries a digest of its content: what is truncated or foreign is
compiled again. A directory that cannot be used costs a warning, once, and nothing else.
"""

import contextlib
import hashlib
import os
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tilesmith.core.cache_dir import directory
from tilesmith.runtime import compiler
from tilesmith.runtime.source import headers

_MAGIC: Final = b"tilesmith-cubin-1\n"
_SUFFIX: Final = ".cubin"
_UNFINISHED: Final = ".part"
EMULATED: Final = ".emulated"  # kernels for the CPU
ARCHIVE: Final = ".archive"  # of kernels that were compiled ahead


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled kernel in the cache."""

    path: Path
    size: int
    used: float  # seconds since the epoch


def cubin(source: str, arch: str, compile: Callable[[str, str], bytes] = compiler.compile) -> bytes:
    """The cubin of a translation unit: from the cache, or compiled and kept."""
    return kept(key(source, arch), _SUFFIX, lambda: compile(source, arch))


def kept(key: str, suffix: str, make: Callable[[], bytes]) -> bytes:
    """What the cache has under a key, or else what `make` makes, which is kept."""
    path = directory() / (key + suffix)
    found = _read(path)
    if found is not None:
        return found
    fresh = make()
    _write(path, fresh)
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
                yield Entry(path, status.st_size, max(status.st_atime, status.st_mtime))


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
    head, digest_size = len(_MAGIC), hashlib.sha256().digest_size
    digest, body = content[head : head + digest_size], content[head + digest_size :]
    if content[:head] != _MAGIC or hashlib.sha256(body).digest() != digest:
        return None
    return body


def _write(path: Path, body: bytes) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(path.parent):
            raise PermissionError(f"{path.parent} belongs to another user or others may write to it")
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
