"""Processes that work through blocks of numbers, and are replaced when they die or do not answer."""

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, Generic, TypeVar

Answer = TypeVar("Answer")
# Called with a number: the answer, and whether the process is of no use from then on.
AnswerFor = Callable[[int], tuple[Answer, bool]]

_CHECKED_EVERY: Final = 0.5  # seconds


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    patience: float  # seconds without an answer, after which it is given up
    pending: deque[int] = field(default_factory=deque)  # in the order of their answers
    heard: float = field(default_factory=time.monotonic)
    has_retired: bool = False


@dataclass(frozen=True, slots=True)
class Crew(Generic[Answer]):
    """So many processes. Each calls `make` once, and what that returns with each number."""

    make: Callable[[], AnswerFor[Answer]]
    lost: Callable[[int, str], Answer]  # the answer for a number that there was none for, and why
    jobs: int
    patience: float = 60.0  # seconds for one number
    first_patience: float = 180.0  # with the start of the process

    def answers(self, blocks: Iterable[Iterable[int]], seconds: float) -> Iterator[Answer]:
        """The answers for all numbers in any order, or for as many as there is time for."""
        end = time.monotonic() + seconds
        todo = deque(deque(block) for block in blocks)
        workers: list[_Worker] = []
        try:
            while (todo or any(worker.pending for worker in workers)) and time.monotonic() < end:
                workers += [self._new_worker() for _ in range(min(self.jobs - len(workers), len(todo)))]
                for worker in workers:
                    if todo and not worker.pending:
                        worker.pending, worker.heard = todo.popleft(), time.monotonic()
                        worker.connection.send(list(worker.pending))
                wait([worker.connection for worker in workers], _CHECKED_EVERY)
                for worker in list(workers):
                    reason = yield from self._heard(worker)
                    if reason is None:
                        continue
                    workers.remove(worker)
                    worker.process.kill()
                    if worker.pending and not worker.has_retired:
                        yield self.lost(worker.pending.popleft(), reason)
                    if worker.pending:
                        todo.append(worker.pending)
        finally:
            for worker in workers:
                worker.process.kill()

    def _heard(self, worker: _Worker) -> Generator[Answer, None, str | None]:
        """The answers that have come in. Returns why nothing more will come, if so."""
        try:
            while worker.connection.poll():
                answer, worker.has_retired = worker.connection.recv()
                worker.pending.popleft()
                worker.heard, worker.patience = time.monotonic(), self.patience
                yield answer
        except (EOFError, ConnectionResetError):
            return "the process died"
        if worker.pending and time.monotonic() - worker.heard > worker.patience:
            return f"there was no answer for {worker.patience:g} seconds"
        return None

    def _new_worker(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(self.make, theirs), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours, self.first_patience)


def _work(make: Callable[[], AnswerFor[Any]], connection: Connection) -> None:
    answer_for = make()
    while True:
        for number in connection.recv():
            answer, is_last = answer_for(number)
            connection.send((answer, is_last))
            if is_last:
                return
