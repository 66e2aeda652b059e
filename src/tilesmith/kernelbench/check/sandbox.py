"""A process with limits: it has its own session, is watched while it works, and ends with all of its children.

The limits stop accidents and cheap tricks. They are no wall against a program that means harm: it runs as the same
user.
"""

import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self
from weakref import WeakSet

from tilesmith.kernelbench.check import wire

_GIB: Final = 2**30
_START: Final = 300.0  # seconds to import torch, perhaps from a cold disk or under compute-sanitizer
_LOOK_EVERY: Final = 0.05  # seconds
_WEIGH_EVERY: Final = 0.2
_LARGEST_ANSWER: Final = 2**24  # bytes; a longer line is no answer of ours
_KEPT_OUTPUT: Final = 2**16  # bytes of the end of what was printed
_TOKEN: Final = "TILESMITH_CHECK_TOKEN"  # marks every descendant, those that left the session too
_FORGED: Final = "it wrote into the channel that is the judge's own"
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def _default_memory() -> int:
    """Three quarters of the host's memory, but no more than 64 GiB."""
    return min(64 * _GIB, os.sysconf("SC_PHYS_PAGES") * _PAGE * 3 // 4)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a process may use: seconds for each answer, and bytes of the host's memory for it and its children."""

    seconds: float = 300.0
    memory: int = _default_memory()


class DeadProcessError(Exception):
    """The process ended, or had to be. The message says why, with the first useful lines of what it printed."""


_living: Final[WeakSet["Sandbox"]] = WeakSet()
_is_ending = False


def end_all() -> None:
    """Ends all processes for good: no new ones can be started. For a program that was told to end."""
    global _is_ending
    _is_ending = True
    for sandbox in list(_living):
        sandbox.kill()


class Sandbox:
    """A module of ours run as `python -m` with a folder of its own, spoken to through `ask`."""

    def __init__(self, module: str, folder: Path, limits: Limits, prefix: Sequence[str] = ()) -> None:
        if _is_ending:
            raise DeadProcessError("the judge was told to end")
        self.folder = folder
        self._limits = limits
        self._token = secrets.token_hex(16)
        self._buffer = b""
        self._weigh_at = 0.0
        self._printed = b""
        self._channel, theirs = socket.socketpair()
        source = str(Path(__file__).parents[3])
        environment = os.environ | {
            _TOKEN: self._token,
            "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),  # ninja
            # Never a build of another candidate, nor the lock of one that was killed.
            "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        }
        with theirs:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        _living.add(self)
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._drain, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _drain(self, printed: IO[bytes]) -> None:
        """Keeps the end of what is printed, however much it is."""
        descriptor = printed.fileno()
        with contextlib.suppress(OSError):
            while chunk := os.read(descriptor, 2**16):
                self._printed = (self._printed + chunk)[-_KEPT_OUTPUT:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._channel.close()
        self._reader.join(timeout=5)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def printed(self) -> str:
        """The end of what the process and its children printed."""
        return self._printed.decode(errors="replace")

    def wait_until_ready(self) -> None:
        """Waits until the process has imported what it needs, which counts against no limit of the candidate's."""
        self._ask(_START, "ready", {})

    def ask(self, do: str, **arguments: Any) -> wire.Message:
        """One request and its answer. DeadProcessError if none comes within the limits."""
        return self._ask(self._limits.seconds, do, arguments)

    def _ask(self, seconds: float, do: str, arguments: Mapping[str, Any]) -> wire.Message:
        deadline = time.monotonic() + seconds
        number = secrets.token_hex(8)
        try:
            wire.send(self._channel, {"do": do, "id": number, **arguments})
        except OSError:
            raise self._died() from None
        while b"\n" not in self._buffer:
            self._wait_for_more(deadline)
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = wire.received(line, number)
        if answer is None:
            self.kill()
            raise DeadProcessError(_FORGED)
        return answer

    def _wait_for_more(self, deadline: float) -> None:
        ready, _, _ = select.select([self._channel], [], [], _LOOK_EVERY)
        if ready:
            try:
                chunk = self._channel.recv(2**16)
            except OSError:
                chunk = b""
            if not chunk:
                raise self._died()
            self._buffer += chunk
            if len(self._buffer) > _LARGEST_ANSWER:
                self.kill()
                raise DeadProcessError(_FORGED)
        elif self._process.poll() is not None:
            raise self._died()
        now = time.monotonic()
        if now > deadline:
            self.kill()
            raise DeadProcessError(f"no answer within {self._limits.seconds:g} s")
        if now < self._weigh_at:
            return
        self._weigh_at = now + _WEIGH_EVERY
        used = self._memory()
        if used > self._limits.memory:
            self.kill()
            raise DeadProcessError(
                f"used {used / _GIB:.1f} GiB of the host's memory, over {self._limits.memory / _GIB:.1f}"
            )

    def finish(self) -> int:
        """Closes the channel, waits for the process to end by itself, and returns its exit status."""
        self._channel.shutdown(socket.SHUT_WR)
        try:
            status = self._process.wait(self._limits.seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DeadProcessError(f"did not end within {self._limits.seconds:g} s") from None
        self._reader.join(timeout=5)
        return status

    def kill(self) -> None:
        """Ends the process and every descendant, also those that have left its session."""
        for _ in range(3):  # a child may be born while its parent dies
            family = {pid for pid, *_ in self._family()} | set(_marked(self._token))
            if self._process.poll() is None:
                family.add(self._process.pid)
            for pid in family:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            if not family:
                break

    def _died(self) -> DeadProcessError:
        """Why the process ended, which is already so or about to be."""
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
            return DeadProcessError("it closed the channel that is the judge's own")
        self.kill()  # children may hold the pipe open
        self._reader.join(timeout=1)
        reason = f"exited with status {status}"
        if status < 0:
            reason = f"killed by {_signal_name(-status)}"
        said = wire.first_useful_lines(self.printed)
        return DeadProcessError(f"{reason}\n{said}" if said else reason)

    def _memory(self) -> int:
        return sum(resident for _, resident in self._family())

    def _family(self) -> Iterator[tuple[int, int]]:
        """The processes of the session and their descendants, each with its resident bytes."""
        found = list(_processes())
        members = {self._process.pid} if self._process.poll() is None else set()
        while True:
            more = {pid for pid, parent, session, _ in found if parent in members or session == self._process.pid}
            if more <= members:
                break
            members |= more
        return ((pid, resident) for pid, _, _, resident in found if pid in members)


def _signal_name(number: int) -> str:
    """
    >>> _signal_name(11), _signal_name(40)
    ('SIGSEGV', 'signal 40')
    """
    return signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"


def _processes() -> Iterator[tuple[int, int, int, int]]:
    """Every process that has not ended: its id, parent, session and resident bytes."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z":
                yield int(path.parent.name), int(fields[1]), int(fields[3]), int(fields[21]) * _PAGE


def _marked(token: str) -> Iterator[int]:
    """The processes that have inherited a token in their environment."""
    mark = f"{_TOKEN}={token}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                yield int(path.parent.name)
