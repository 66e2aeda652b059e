"""`tilesmith info`: versions, GPUs and the kernel cache. It works where nothing is installed."""

from typing import TYPE_CHECKING

import click

from tilesmith.cli import Command, console, format_bytes, format_kernels, json_option, print_json

if TYPE_CHECKING:
    from tilesmith.cli.machine import Archive, Gpu, Info


@click.command(cls=Command)
@json_option
def info(as_json: bool) -> None:
    """Show versions, GPUs and the kernel cache, and what is missing."""
    from tilesmith.cli import machine

    found = machine.collect()
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: "Info") -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def add(label: str, value: str | None, missing: str | None = None) -> None:
        table.add_row(label, value if missing is None else f"missing: {missing}", style=missing and "yellow")

    add("Tilesmith", found.tilesmith)
    add("Python", found.python)
    add("torch", found.torch)
    add("cuda-bindings", found.cuda_bindings.version, found.cuda_bindings.missing)
    add("NVRTC", found.nvrtc.version, found.nvrtc.missing)
    add("CUDA driver", f"for CUDA {found.driver.version}", found.driver.missing)
    for gpu in found.gpus:
        table.add_row(f"GPU {gpu.index}", _gpu(gpu), style=gpu.unsupported and "yellow")
    if found.no_gpu:
        add("GPU", None, found.no_gpu)
    kept = f"{format_kernels(found.cache.entries)}, {format_bytes(found.cache.bytes)}"
    table.add_row("cache", f"{found.cache.directory}\n{kept}")
    for each in found.archives:
        table.add_row("archive", _archive(each, found), style=None if each.is_current else "yellow")
    console().print(table)


def _gpu(gpu: "Gpu") -> str:
    shared = f"{format_bytes(gpu.shared_bytes_per_sm)} an SM, {format_bytes(gpu.shared_bytes_per_block)} a block"
    support = gpu.arch or f"unsupported: {gpu.unsupported}"
    return "\n".join(
        (gpu.name, support, f"{gpu.sm_count} SMs", f"shared memory {shared}", f"L2 {format_bytes(gpu.l2_bytes)}")
    )


def _archive(found: "Archive", everything: "Info") -> str:
    what = f"{found.path}\n{format_kernels(found.kernels)} for {found.arch}, {format_bytes(found.bytes)}"
    if found.is_current:
        return what
    if everything.has_archive(found.arch):
        return f"{what}\nnot used, since it is of other sources; another one is"
    return f"{what}\nnot used, since it is of other sources: run tilesmith build --gpu {found.arch}"
