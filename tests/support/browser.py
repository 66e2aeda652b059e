"""A headless Chromium, driven by the DevTools protocol over two pipes: no package, no port.

As a program: exits with 1 if there is no Chromium.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE: Final = 60.0  # seconds until an answer must be there; CI machines are slow

# Chromium reads commands from descriptor 3 and answers on 4.
_START: Final = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One tab."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._received = b""
        self._sent = 0
        self._session: str | None = None
        self.requests: list[str] = []  # the addresses of all that was asked for
        self.complaints: list[str] = []  # what the console says of errors and warnings, and uncaught exceptions
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Loads a file in a window of this size. Returns when all of it is there."""
        self._send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])
        self._send("Page.navigate", url=path.resolve().as_uri())
        self._wait_for("Page.loadEventFired")

    def run_scripts(self, yes: bool) -> None:
        """Whether pages that are opened from now on may run scripts."""
        self._send("Emulation.setScriptExecutionDisabled", value=not yes)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._sent:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _wait_for(self, event: str) -> None:
        while self._receive().get("method") != event:
            pass

    def _receive(self) -> dict[str, Any]:
        """The next message, which may be an answer or an event. Events of interest are noted."""
        deadline = time.monotonic() + _PATIENCE
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser has not answered for {_PATIENCE:.0f} seconds"
            more = os.read(self._answers, 1 << 16)
            assert more, "the browser ended"
            self._received += more
        first, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(about["exceptionDetails"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(about["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(about["args"]))


def installed() -> str | None:
    """The program, if there is one."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def headless() -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    program = installed()
    assert program, "there is no Chromium; on Debian: apt-get install chromium-headless-shell (make browser, as root)"
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()
    with tempfile.TemporaryDirectory(prefix="tilesmith-browser-", ignore_cleanup_errors=True) as profile:
        arguments = [
            *(sys.executable, "-S", "-c", _START, str(read_commands), str(write_answers)),
            *(program, "--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}"),
            "--no-sandbox",  # with it, Chromium does not run as root
            *("--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
            *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
        ]
        process = subprocess.Popen(arguments, pass_fds=(read_commands, write_answers))
        os.close(read_commands)
        os.close(write_answers)
        try:
            yield Browser(commands, answers)
        finally:
            os.close(commands)  # the browser ends when nobody can command it any more
            os.close(answers)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


if __name__ == "__main__":
    sys.exit(0 if installed() else 1)
