"""Cubins on disk: kept, shared by processes, and never trusted blindly."""

import hashlib
import multiprocessing
import os
import re
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tilesmith.core import cache_dir
from tilesmith.runtime import cache, compiler, source

SOURCE, ARCH = 'extern "C" __global__ void f() {}', "sm_90a"


class Compiler:
    """Stands in for NVRTC, and counts."""

    def __init__(self, cubin: bytes = b"\x7fELF cubin") -> None:
        self.cubin = cubin
        self.calls: list[tuple[str, str]] = []

    def __call__(self, source: str, arch: str) -> bytes:
        self.calls.append((source, arch))
        return self.cubin


def never(source: str, arch: str) -> bytes:
    raise AssertionError("the cache had this cubin")


@pytest.fixture
def headers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The package's headers, for a test to change."""
    changed = dict(source.headers())
    monkeypatch.setattr(cache, "headers", lambda: changed)
    cache._headers_digest.cache_clear()
    yield changed
    cache._headers_digest.cache_clear()


def test_a_cubin_is_compiled_once_and_kept(own_cache: Path) -> None:
    nvrtc = Compiler()
    assert cache.cubin(SOURCE, ARCH, nvrtc) == nvrtc.cubin
    assert cache.cubin(SOURCE, ARCH, never) == nvrtc.cubin
    assert nvrtc.calls == [(SOURCE, ARCH)]
    assert [path.name for path in own_cache.iterdir()] == [cache.key(SOURCE, ARCH) + ".cubin"]


def test_a_real_cubin_comes_back_as_it_was_compiled() -> None:
    fresh = cache.cubin(SOURCE, ARCH)
    assert fresh == compiler.compile(SOURCE, ARCH)
    assert fresh.startswith(b"\x7fELF")
    assert cache.cubin(SOURCE, ARCH, never) == fresh


def test_the_directory_follows_the_users_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir.directory() == tmp_path / "cache" / "tilesmith"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("XDG_CACHE_HOME")
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache_dir.directory() == tmp_path / "home" / ".cache" / "tilesmith"


def test_the_directory_is_the_users_alone(own_cache: Path) -> None:
    before = os.umask(0o000)
    try:
        cache.cubin(SOURCE, ARCH, Compiler())
    finally:
        os.umask(before)
    assert stat.S_IMODE(own_cache.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) & 0o077 for path in own_cache.iterdir()] == [0]


def test_the_key_changes_with_all_that_a_cubin_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source, the architecture, the options and NVRTC's version."""
    sources, architectures = (SOURCE, SOURCE + " ", ""), ("sm_90a", "sm_90", "sm_75")
    keys = {cache.key(source, arch) for source in sources for arch in architectures}
    assert keys == {cache.key(source, arch) for source in sources for arch in architectures}
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)  # fits a file name
    for version in ((12, 9), (13, 99), (139, 9)):
        monkeypatch.setattr(compiler, "version", lambda version=version: version)
        keys.add(cache.key(SOURCE, ARCH))
    monkeypatch.setattr(compiler, "OPTIONS", (*compiler.OPTIONS, "--use_fast_math"))
    assert len(keys | {cache.key(SOURCE, ARCH)}) == 9 + 3 + 1


def test_the_key_changes_with_a_headers_text_and_name(headers: dict[str, str]) -> None:
    keys = {cache.key(SOURCE, ARCH)}
    headers["element.cuh"] += "\n"
    cache._headers_digest.cache_clear()
    keys.add(cache.key(SOURCE, ARCH))
    headers["other.cuh"] = headers.pop("element.cuh")
    cache._headers_digest.cache_clear()
    keys.add(cache.key(SOURCE, ARCH))
    assert len(keys) == 3


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "truncated in the head": lambda whole: whole[:10],
    "truncated in the digest": lambda whole: whole[:30],
    "truncated in the body": lambda whole: whole[:-1],
    "no body": lambda whole: whole[:50],
    "one bit": lambda whole: whole[:-7] + bytes([whole[-7] ^ 1]) + whole[-6:],
    "grown": lambda whole: whole + b"\0",
    "foreign": lambda whole: b"\x7fELF" + b"something else" * 50,
    "another format": lambda whole: b"tilesmith-cubin-0\n" + whole[18:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_entry_is_built_again(damage: str) -> None:
    cache.cubin(SOURCE, ARCH, Compiler(b"right " * 100))
    (entry,) = cache.entries()
    entry.path.write_bytes(DAMAGES[damage](entry.path.read_bytes()))
    nvrtc = Compiler(b"rebuilt")
    assert cache.cubin(SOURCE, ARCH, nvrtc) == b"rebuilt"
    assert len(nvrtc.calls) == 1
    assert cache.cubin(SOURCE, ARCH, never) == b"rebuilt"


def test_an_entry_that_is_a_directory_costs_a_warning_and_not_the_call(own_cache: Path) -> None:
    (own_cache / (cache.key(SOURCE, ARCH) + ".cubin")).mkdir(parents=True, mode=0o700)
    own_cache.chmod(0o700)
    with pytest.warns(RuntimeWarning, match="cannot keep compiled kernels"):
        assert cache.cubin(SOURCE, ARCH, Compiler()) == Compiler().cubin
    assert list(own_cache.glob("*.part")) == []


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o720])
def test_a_directory_that_others_may_write_to_is_not_trusted(own_cache: Path, mode: int) -> None:
    cache.cubin(SOURCE, ARCH, Compiler(b"planted"))
    own_cache.chmod(mode)
    with pytest.warns(RuntimeWarning, match="others may write"):
        assert cache.cubin(SOURCE, ARCH, Compiler(b"own")) == b"own"
    own_cache.chmod(0o700)
    assert cache.cubin(SOURCE, ARCH, never) == b"planted"


def test_a_directory_of_another_user_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.cubin(SOURCE, ARCH, Compiler(b"planted"))
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        assert cache.cubin(SOURCE, ARCH, Compiler(b"own")) == b"own"


def test_an_unusable_directory_costs_one_warning_and_not_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    nvrtc = Compiler()
    with pytest.warns(RuntimeWarning) as caught:
        assert cache.cubin(SOURCE, ARCH, nvrtc) == nvrtc.cubin
        assert cache.cubin(SOURCE, ARCH, nvrtc) == nvrtc.cubin
        assert cache.cubin(SOURCE, "sm_80", nvrtc) == nvrtc.cubin
    assert len(nvrtc.calls) == 3
    (warning,) = caught
    assert str(tmp_path / "file" / "cache" / "tilesmith") in str(warning.message)
    assert "XDG_CACHE_HOME" in str(warning.message)
    assert list(cache.entries()) == []
    assert cache.clear() == 0


def test_a_write_that_fails_halfway_leaves_nothing_behind(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert cache.cubin(SOURCE, ARCH, Compiler(b"own")) == b"own"
    assert list(own_cache.iterdir()) == []


def test_a_failed_compilation_leaves_nothing_behind(own_cache: Path) -> None:
    def fails(source: str, arch: str) -> bytes:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.cubin(SOURCE, ARCH, fails)
    assert not own_cache.exists()


def test_entries_tells_the_size_and_the_last_use() -> None:
    assert list(cache.entries()) == []
    start = time.time()
    cache.cubin(SOURCE, ARCH, Compiler(b"x" * 1000))
    (entry,) = cache.entries()
    assert entry.path == cache_dir.directory() / (cache.key(SOURCE, ARCH) + ".cubin")
    assert entry.size == entry.path.stat().st_size > 1000
    assert start - 5 < entry.used < time.time() + 5


def test_an_entry_says_of_which_kernel_it_is_and_to_look_is_not_to_use_it(own_cache: Path) -> None:
    about = cache.About("gemm", "128x256", ARCH)
    cache.cubin(SOURCE, ARCH, Compiler(), about=about)
    (path,) = own_cache.iterdir()
    os.utime(path, (1000, 1000))
    for _ in range(2):
        (entry,) = cache.entries()
        assert (entry.about, entry.made, entry.used, entry.is_emulated) == (about, 1000, 1000, False)
    assert cache.cubin(SOURCE, ARCH, never) == Compiler().cubin


def test_entries_of_an_earlier_version_are_used_and_listed_without_words(own_cache: Path) -> None:
    own_cache.mkdir(parents=True, mode=0o700)
    path = own_cache / (cache.key(SOURCE, ARCH) + ".cubin")
    path.write_bytes(b"tilesmith-cubin-1\n" + hashlib.sha256(b"old").digest() + b"old")
    assert cache.cubin(SOURCE, ARCH, never) == b"old"
    (entry,) = cache.entries()
    assert (entry.path, entry.about) == (path, cache.About())


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entries_are_listed(damage: str) -> None:
    cache.cubin(SOURCE, ARCH, Compiler(b"right " * 100))
    (entry,) = cache.entries()
    entry.path.write_bytes(DAMAGES[damage](entry.path.read_bytes()))
    (again,) = cache.entries()
    assert again.path == entry.path


def test_clear_removes_entries_and_leftovers_and_nothing_else(own_cache: Path) -> None:
    for arch in ("sm_75", "sm_80", "sm_90a"):
        cache.cubin(SOURCE, arch, Compiler())
    (own_cache / "abc.part").write_bytes(b"unfinished")
    (own_cache / "notes.txt").write_text("the user's own")
    assert cache.clear() == 3
    assert [path.name for path in own_cache.iterdir()] == ["notes.txt"]
    assert cache.clear() == 0
    assert cache.cubin(SOURCE, ARCH, Compiler(b"again")) == b"again"


PROCESSES = 16
SHARED_SOURCES = [SOURCE, SOURCE + "// another"]


def body(source: str) -> bytes:
    """A cubin large enough that a torn one would show."""
    return source.encode() * 20000


def start_at_once(number: int, barrier: object, log: str, results: str) -> None:
    """One of the processes: compiles slowly, and records what it did and got."""

    def slow(source: str, arch: str) -> bytes:
        with open(log, "a") as file:
            file.write(f"{number}\n")
        time.sleep(0.3)
        return body(source)

    warnings.simplefilter("error")
    barrier.wait(300)  # type: ignore[attr-defined]
    right = all(cache.cubin(source, ARCH, slow) == body(source) for source in SHARED_SOURCES)
    again = all(cache.cubin(source, ARCH, never) == body(source) for source in SHARED_SOURCES)
    Path(results, str(number)).write_text(f"{right} {again}")


def test_sixteen_processes_that_start_at_once_all_get_whole_cubins(own_cache: Path, tmp_path: Path) -> None:
    results, log = tmp_path / "results", tmp_path / "log"
    results.mkdir()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "pytest"])  # the slow imports, once for all
    barrier = context.Barrier(PROCESSES)
    shared = barrier, str(log), str(results)
    processes = [context.Process(target=start_at_once, args=(i, *shared)) for i in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    assert [(results / str(i)).read_text() for i in range(PROCESSES)] == ["True True"] * PROCESSES
    assert len(set(log.read_text().split())) > 1, "they did not race"
    expected = {cache.key(source, ARCH) + ".cubin" for source in SHARED_SOURCES}
    assert {path.name for path in own_cache.iterdir()} == expected
    assert all(cache.cubin(source, ARCH, never) == body(source) for source in SHARED_SOURCES)
