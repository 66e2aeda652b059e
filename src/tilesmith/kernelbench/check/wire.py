"""Messages between the parent and its two processes: one JSON object a line, on a socket that prints cannot spoil.

JSON, because the parent must not unpickle what a candidate's process says. Tensors travel by `exchange`.
"""

import json
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

Message = dict[str, Any]
Handler = Callable[..., Message]
Kind = Callable[[object], bool]  # whether a part of an answer is what it must be

_USEFUL_LINES = 12
_LONGEST = 200  # characters of a line
_LOOK_EVERY: Final = 1.0  # seconds, for the parent

_sleep, _parent = time.sleep, os.getppid  # before a candidate replaces them


def send(channel: socket.socket, message: Message) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def received(line: bytes, number: str) -> Message | None:
    """The answer to a request; None if it is none, whatever it is. It may come from a candidate.

    >>> received(b'{"id": "7", "changed": []}', "7"), received(b"[" * 10**5, "7"), received(b"\\xff", "7")
    ({'changed': []}, None, None)
    """
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) and answer.pop("id", None) == number else None


def is_texts(x: object) -> bool:
    return isinstance(x, list) and all(isinstance(each, str) for each in x)


def is_whole(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def are_times(x: object) -> bool:
    """Whether it is milliseconds by competitor."""
    return isinstance(x, dict) and all(isinstance(row, list) and row and all(map(_is_time, row)) for row in x.values())


def _is_time(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and 0 < x < math.inf


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answers requests, in a process that the sandbox started, until the parent goes away.

    A request names a handler in "do" and has its arguments besides; the answer is what the handler returns, or
    {"raised": lines} for whatever it raises. It repeats the request's "id", which cannot be guessed."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_with, args=(_parent(),), daemon=True).start()
    channel = socket.socket(fileno=descriptor)
    with channel.makefile("rb") as requests:
        for line in requests:
            request = json.loads(line)
            do, number = request.pop("do"), request.pop("id")
            try:
                answer = {} if do == "ready" else handlers[do](**request)
            except SystemExit as leaving:
                answer = {"raised": f"SystemExit: {leaving}"}
            except BaseException as error:
                answer = {"raised": useful(error)}
            send(channel, {**answer, "id": number})


def _end_with(parent: int) -> None:
    """Ends this process and its children after its parent, who could not if it was killed."""
    while _parent() == parent:
        _sleep(_LOOK_EVERY)
    os.killpg(0, signal.SIGKILL)


def useful(error: BaseException) -> str:
    """An exception in a few lines: what it is, the line of the loaded file where it arose, and its message, of which
    the lines that say "error" count most."""
    text = f"{type(error).__name__}: {error}"
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_loaded(frame.filename)]
    if places and not isinstance(error, SyntaxError):
        text = f"line {places[-1].lineno} of {Path(places[-1].filename).name}: {text}"
    return first_useful_lines(text)


def _is_loaded(filename: str) -> bool:
    """Whether a file is neither ours nor a library's."""
    ours = str(Path(__file__).parent)
    return not filename.startswith((ours, "<", sys.prefix, sys.base_prefix)) and "site-packages" not in filename


def first_useful_lines(text: str) -> str:
    """The first line and those that name an error, or the first lines if none does.

    >>> first_useful_lines("Building failed\\n[1/2] nvcc -c cuda.cu\\ncuda.cu(3): error: expected a ;\\n1 warning")
    'Building failed\\ncuda.cu(3): error: expected a ;'
    """
    lines = [line.rstrip()[:_LONGEST] for line in text.splitlines() if line.strip()]
    named = [line for line in lines[1:] if "error" in line.lower() or "invalid" in line.lower()]
    return "\n".join((lines[:1] + named if named else lines)[:_USEFUL_LINES])
