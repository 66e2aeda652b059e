"""What every command has in common: how it ends. Exit codes are 0; 1 for a result that is wrong, slower or missing;
2 for what cannot be done as asked; 130 after Ctrl-C; 141 where nobody reads the output any more."""

import importlib
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import click

INTERRUPTED: Final = 128 + signal.SIGINT  # the exit code after Ctrl-C
_UNREAD: Final = 128 + signal.SIGPIPE
_ONE_CTRL_C: Final = 1.0  # seconds

_JSON: Final = "--json"
_RECORD: Final = "--record"
RECORDING: Final = ("bench", "tune")  # that write what they measured with --record, which was --json FILE once
_NO_NUMPY: Final = "Failed to initialize NumPy"  # so torch warns when it is imported; nothing here uses NumPy


class UnusableError(click.ClickException):
    """What a command was given, or where it runs, does not do: exit code 2, like wrong usage."""

    exit_code = 2


class Command(click.Command):
    """A command that works with torch. It is imported when the command is run, not for its help."""

    def invoke(self, ctx: click.Context) -> Any:
        without_numpy_warning()
        with _uninterrupted():
            import tilesmith
            from tilesmith.core import errors

            assert tilesmith.matmul is not None  # the package has all of its names from now on
        known = (
            *(errors.UnavailableError, errors.CompilationError, errors.DriverError, errors.EmulationError),
            errors.ColdCaptureError,
        )
        try:
            return super().invoke(ctx)
        except known as error:
            raise UnusableError(str(error)) from error


def without_numpy_warning() -> None:
    """Before torch is imported, here or in a process that this one starts."""
    warnings.filterwarnings("ignore", _NO_NUMPY, UserWarning)
    ours = f"ignore:{_NO_NUMPY}:UserWarning"
    others = os.environ.get("PYTHONWARNINGS", "")
    if ours not in others:
        os.environ["PYTHONWARNINGS"] = f"{others},{ours}" if others else ours


class Group(click.Group):
    """A group that imports a command when it is called; `--help` imports none of them."""

    def __init__(self, *arguments: Any, summaries: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._summaries = summaries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._summaries:
            return None
        command: click.Command = getattr(importlib.import_module(f"tilesmith.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        given = _with_record(list(sys.argv[1:] if args is None else args))
        if not standalone_mode:
            return super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
        interrupts = _Interrupts()
        if args is None:  # the process is this command alone
            signal.signal(signal.SIGINT, interrupts)
        try:
            with _ending(as_json=_JSON in given):
                code = super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
                sys.exit(code if isinstance(code, int) else 0)
        finally:
            if args is None:
                interrupts.nothing_is_left_to_end()


class _Interrupts:
    """What Ctrl-C does: the first one ends what is done, which may take a while; another one ends the process. Some
    programs send two at once, as `timeout` does: they count as one."""

    def __init__(self) -> None:
        self._first: float | None = None

    def nothing_is_left_to_end(self) -> None:
        """From now on the process ends at once: what waits for its threads and processes would take no exception."""
        if self._first is None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._first is None:
            self._first = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - self._first > _ONE_CTRL_C:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until this is left: torch takes an import that was interrupted for one that failed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda *signalled: seen.append(signalled))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if seen and callable(before):
        before(*seen[0])


@contextmanager
def _ending(*, as_json: bool) -> Iterator[None]:
    """How a command ends that cannot do what it was asked for: with a message, in JSON where that was asked for."""
    try:
        yield
    except click.Abort:
        _fail("interrupted", INTERRUPTED, as_json)
    except click.ClickException as error:
        if not as_json and type(error) is not click.BadParameter:  # a wrong value needs no lesson in usage
            error.show()
            sys.exit(error.exit_code)
        _fail(error.format_message(), error.exit_code, as_json)
    except MemoryError:
        _fail("this machine has too little memory for it", UnusableError.exit_code, as_json)
    except OSError as error:
        _fail(_reason(error), UnusableError.exit_code, as_json)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # click and rich exit with 1
            _leave_pipe()
        raise


def _fail(message: str, code: int, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"error": message}))
    else:
        click.echo(f"Error: {message}" if code != INTERRUPTED else message, err=True)
    sys.exit(code)


def _leave_pipe() -> None:
    """What is still to be written goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    sys.exit(_UNREAD)


def _reason(error: OSError) -> str:
    return str(error) if error.strerror is None or error.filename is None else f"{error.filename}: {error.strerror}"


def _with_record(given: list[str]) -> list[str]:
    """The arguments with `--record FILE` for `--json FILE`, as it was once called: recorded runs name such commands."""
    if given[:1] and given[0] in RECORDING:
        following = [*given[1:], "-"]
        given = [
            _RECORD if each == _JSON and not after.startswith("-") else each.replace(f"{_JSON}=", f"{_RECORD}=", 1)
            for each, after in zip(given, following, strict=True)
        ]
    return given
