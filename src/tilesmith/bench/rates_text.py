"""The text of a GPU's file, `planner/rates/*.toml`: tables are put into it, and what people wrote around them stays."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Final

from tilesmith.core.device import Device
from tilesmith.core.roofline import Peak

Value = int | float | str | date | tuple[int, ...] | tuple[str, ...] | Mapping[str, float]

_WIDTH: Final = 120
_QUOTES: Final = '"""'


def facts_text(device: Device, peak: Peak) -> str:
    """A new file for a GPU that is here, with table `gpu` alone.

    >>> from tilesmith.core.device import named
    >>> facts_text(named("t4"), Peak.known("t4")).splitlines()[:4]
    ['[gpu]', 'name = "Tesla T4"', 'names = ["Tesla T4*"]', 'capability = [7, 5]']
    """
    facts: dict[str, Value] = {
        "name": device.name,
        "names": (f"{device.name}*",),
        "capability": device.capability,
        "sm_count": device.sm_count,
        "shared_kib_per_sm": device.shared_bytes_per_sm // 1024,
        "threads_per_sm": device.threads_per_sm,
        "l2_mib": device.l2_bytes // 2**20,
        "max_clock_hz": peak.clock_hz,
        "memory_bytes_per_second": peak.bytes_per_second,
        "source": "what the driver says of it",
    }
    return patched("", "gpu", facts)


def patched(text: str, table: str, values: Mapping[str, Value]) -> str:
    """The text with these values in a table: in the place of those that it has, at its end, or in a table of its own.

    >>> print(patched("[a]\\nx = 1.0 # why\\n[b]\\nx = 2.0", "a", {"x": 3.0, "y": {"z": 4.0}}))
    [a]
    x = 3.0 # why
    y = { z = 4.0 }
    [b]
    x = 2.0
    """
    entries = list(_entries(text))
    left = dict(values)
    written: list[str] = []
    last = None  # the entry in `written` after which the table's next one would be
    is_inside = False
    for entry in entries:
        if header := re.match(r"\[([^\]]+)\]", entry):
            is_inside = header[1] == table
        key = entry.partition(" = ")[0]
        if is_inside and key in left:
            comment = re.search(r"\s+#[^\"']*$", entry)
            entry = _entry(key, left.pop(key)) + (comment[0] if comment else "")
        written.append(entry)
        if is_inside and entry and not entry.startswith("#"):
            last = len(written)
    if last is None:
        written += [*([""] if entries else []), f"[{table}]"]
        last = len(written)
    written[last:last] = [_entry(key, value) for key, value in left.items()]
    return "\n".join(written) + ("\n" if text.endswith("\n") or not text else "")


def _entries(text: str) -> Iterator[str]:
    """The lines, and texts of several lines with the key that they belong to."""
    lines = iter(text.splitlines())
    for line in lines:
        entry = line
        while entry.count(_QUOTES) % 2:
            entry += "\n" + next(lines)
        yield entry


def _entry(key: str, value: Value) -> str:
    line = f"{key} = {_text(value)}"
    if len(line) > _WIDTH and isinstance(value, str):
        return f"{key} = {_QUOTES}\n{textwrap.fill(value, _WIDTH - len(_QUOTES))}{_QUOTES}"
    return line


def _text(value: Value) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_entry(*item) for item in value.items()) + " }"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return json.dumps(value) if isinstance(value, str) else str(value)
