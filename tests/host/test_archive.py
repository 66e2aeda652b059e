"""Kernels compiled ahead: they come back as they were compiled, from a whole archive or not at all."""

import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from tilesmith.cli import main
from tilesmith.core.device import named
from tilesmith.core.plan import Kernel
from tilesmith.core.problem import Problem
from tilesmith.planner import candidates, choose
from tilesmith.runtime import archive, cache, compiler, cubins, driver, executor, loading, source
from tilesmith.runtime.archive import Archive, DamagedArchiveError

ARCH = "sm_90a"
GPU = named("h200")


def operands(size: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(size, size, dtype=dtype, device="meta"), torch.empty(size, size, dtype=dtype, device="meta")


def kernels_of_a_product() -> list[Kernel]:
    """Three small ones that are quickly compiled, of two source files."""
    found = dict.fromkeys(
        launch.kernel
        for size in (64, 1000)
        for candidate in candidates(Problem.of(*operands(size)), GPU)
        for launch in candidate.plan().launches
        if launch.kernel.entry in ("split", "reduce", "split_k_reduce")
    )
    return list(found)[:3]


def many_kernels() -> list[Kernel]:
    """More than a block holds, of several source files."""
    found = dict.fromkeys(
        launch.kernel
        for dtype in (torch.float32, torch.bfloat16)
        for candidate in candidates(Problem.of(*operands(4096, dtype)), GPU)
        for launch in candidate.plan().launches
    )
    return list(found)[:30]


def stand_in(kernel: Kernel) -> bytes:
    """What stands for a cubin: a kernel's text, and something that cannot be compressed."""
    text = source.render(kernel).encode()
    return text + b"".join(hashlib.sha256(text + bytes([i])).digest() for i in range(200))


@pytest.fixture
def whole(own_cache: Path) -> Path:
    """The user's archive, of stand-ins."""
    own_cache.mkdir(mode=0o700, parents=True)
    path = archive.users_file(ARCH)
    path.write_bytes(archive.packed({kernel: stand_in(kernel) for kernel in many_kernels()}, ARCH))
    return path


def never(*_: Any) -> bytes:
    raise AssertionError("the archive has this kernel")


def test_what_was_built_comes_back_without_nvrtc_as_nvrtc_compiles_it_again(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = kernels_of_a_product()
    monkeypatch.setattr("tilesmith.cli.build_run.catalogue", lambda gpu: kernels)
    result = CliRunner().invoke(main, ["build", "--arch", ARCH])
    assert result.exit_code == 0, result.output
    assert len(list(cache.entries())) == len(kernels) == 3
    for entry in cache.entries():
        entry.path.unlink()
    again = {kernel: compiler.compile(source.render(kernel), ARCH) for kernel in kernels}
    for needed in ("_compile", "_nvrtc", "version"):
        monkeypatch.setattr(compiler, needed, never)
    assert {kernel: cubins.cubin(kernel, ARCH) for kernel in kernels} == again
    assert list(cache.entries()) == []


def test_the_same_kernels_give_the_same_bytes() -> None:
    kernels = many_kernels()
    forwards = archive.packed({kernel: stand_in(kernel) for kernel in kernels}, ARCH)
    backwards = archive.packed({kernel: stand_in(kernel) for kernel in reversed(kernels)}, ARCH)
    assert forwards == backwards


def test_what_is_not_asked_for_is_not_read(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    real = os.pread

    def pread(descriptor: int, size: int, position: int) -> bytes:
        read.append((position, size))
        return real(descriptor, size, position)

    monkeypatch.setattr(os, "pread", pread)
    first, *_ = kernels = many_kernels()
    assert archive.find(first, ARCH) == stand_in(first)
    assert len(read) == 3  # the head, the index and one block
    assert sum(size for _, size in read) < whole.stat().st_size / 4
    assert archive.find(first, ARCH) == stand_in(first)
    assert len(read) == 3
    assert all(archive.find(kernel, ARCH) == stand_in(kernel) for kernel in kernels)
    (opened,) = archive.installed(ARCH)
    assert len(opened) == len(kernels)
    assert len(opened._decompressed) <= 2 * archive._MAX_DECOMPRESSED_BLOCKS


def test_other_sources_options_and_architectures_are_not_found(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = many_kernels()[0]
    (opened,) = archive.installed(ARCH)
    text = source.render(kernel)
    assert opened.cubin(cache.content_key(text, ARCH)) == stand_in(kernel)
    assert opened.cubin(cache.content_key(text + "\n", ARCH)) is None
    assert opened.cubin(cache.content_key(text, "sm_90")) is None
    monkeypatch.setattr(compiler, "OPTIONS", (*compiler.OPTIONS, "--use_fast_math"))
    assert archive.find(kernel, ARCH) is None


def test_an_archive_of_other_sources_is_not_used_and_info_says_so(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown() -> str:
        return " ".join(CliRunner().invoke(main, ["info"]).output.split())

    assert f"{len(many_kernels())} kernels for sm_90a" in shown()
    assert "of other sources" not in shown()
    monkeypatch.setattr(cache, "_headers_digest", lambda: "another")
    assert "not used, since it is of other sources: run tilesmith build" in shown()
    monkeypatch.setattr(source, "render", never)
    assert archive.find(many_kernels()[0], ARCH) is None


def damaged(content: bytes, how: str) -> bytes:
    at = {"the magic": 3, "the index's length": 22, "the top of the index's length": 27, "the index": 200}.get(how)
    if at is not None:
        return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    return {"empty": b"", "cut in the head": content[:30], "cut in the index": content[:300]}[how]


@pytest.mark.parametrize(
    "how",
    [
        "the magic",
        "the index's length",
        "the top of the index's length",
        "the index",
        "empty",
        "cut in the head",
        "cut in the index",
    ],
)
def test_a_damaged_index_costs_a_warning_and_the_kernels_are_compiled(whole: Path, how: str) -> None:
    whole.write_bytes(damaged(whole.read_bytes(), how))
    with pytest.raises(DamagedArchiveError):
        Archive(whole)
    with pytest.warns(RuntimeWarning, match=r"cannot read compiled kernels from .*sm_90a\.archive"):
        assert archive.find(many_kernels()[0], ARCH) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert archive.find(many_kernels()[1], ARCH) is None  # said once


def test_a_damaged_block_costs_its_kernels_and_no_others(whole: Path) -> None:
    content = bytearray(whole.read_bytes())
    content[-100] ^= 1  # in the last block
    whole.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="its content is not what was written"):
        found = [archive.find(kernel, ARCH) for kernel in many_kernels()]
    lost = sum(cubin is None for cubin in found)
    assert 0 < lost <= archive._KERNELS_A_BLOCK
    whole.write_bytes(content[:-2000])
    archive._opened.cache_clear()
    archive._warned.clear()
    with pytest.warns(RuntimeWarning, match="its end is missing"):
        assert any(archive.find(kernel, ARCH) is None for kernel in many_kernels())


def test_an_archive_that_others_may_write_to_is_not_used(whole: Path) -> None:
    whole.parent.chmod(0o777)
    assert archive.find(many_kernels()[0], ARCH) is None


def test_with_an_archive_of_its_kernels_a_plan_needs_no_nvrtc(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = choose(Problem.of(*operands(4096)), GPU)
    made = {launch.kernel: stand_in(launch.kernel) for launch in plan.launches}
    own_cache.mkdir(mode=0o700, parents=True)
    archive.users_file(ARCH).write_bytes(archive.packed(made, ARCH))
    loaded: list[bytes] = []
    monkeypatch.setattr(loading, "_functions", {})
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(driver, "load", lambda cubin, *_: loaded.append(cubin))
    for needed in ("_compile", "_nvrtc", "version"):
        monkeypatch.setattr(compiler, needed, never)
    executor.load([(plan, 0)])
    assert sorted(loaded) == sorted(made.values())
    assert list(cache.entries()) == []


def test_clearing_the_cache_removes_the_users_archives(whole: Path) -> None:
    assert cache.clear() == 0  # they are no entries
    assert not whole.exists()
