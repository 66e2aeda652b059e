"""A table of what was used of late: of bounded size, and as quick as a dictionary."""

import threading
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """A dictionary that forgets what was not used for long. It has no None.

    It has two generations. What is put in or found becomes young. When there are `size` young ones they grow old, and
    those that were old and were not found since are forgotten. So the last `size` that were used are always there, and
    never more than twice as many.

    `young` is always the same dictionary: who is in a hurry looks there first, and that is all it takes as a rule.
    Threads may use a table at the same time.

    >>> squares = Recent[int, int](2)
    >>> for x in 1, 2, 3:
    ...     squares[x] = x * x
    >>> squares.get(1), sorted(squares)
    (1, [1, 2, 3])
    >>> squares[4] = 16
    >>> squares.get(2), sorted(squares)
    (None, [1, 3, 4])
    """

    __slots__ = ("_lock", "_old", "_size", "young")

    def __init__(self, size: int) -> None:
        self.young: Final[dict[Key, Value]] = {}
        self._old: dict[Key, Value] = {}
        self._size = size
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """What is there under a key, or None."""
        value = self.young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self[key] = value
        return value

    def __setitem__(self, key: Key, value: Value) -> None:
        forgotten = None  # until the lock is released: what goes may have something to do then
        with self._lock:
            if len(self.young) >= self._size and key not in self.young:
                forgotten, self._old = self._old, self.young.copy()
                self.young.clear()
            self.young[key] = value
        del forgotten

    def pop(self, key: Key) -> Value | None:
        """Takes out what is there under a key, or None."""
        with self._lock:
            old = self._old.pop(key, None)
            return self.young.pop(key, old)

    def clear(self) -> None:
        """Forgets all."""
        with self._lock:
            forgotten = self._old, self.young.copy()
            self._old = {}
            self.young.clear()
        del forgotten

    def values(self) -> list[Value]:
        """Everything that is there."""
        with self._lock:
            return list({**self._old, **self.young}.values())

    def __iter__(self) -> Iterator[Key]:
        with self._lock:
            return iter({**self._old, **self.young})

    def __len__(self) -> int:
        with self._lock:
            return len(self._old.keys() | self.young.keys())
