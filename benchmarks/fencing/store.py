"""A store in memory, and one actor's view of this store. Each request lets another actor run, and some answers are
wrong."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from random import Random

from segue.errors import MissingObjectError
from segue.stores.base import ObjectInfo


class MemoryStore:
    """Objects in a dict. Every operation is atomic."""

    url, is_remote = "memory", False

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self.objects.setdefault(key, data) is data

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        self.objects[key] = bytes(data)

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise MissingObjectError(key=key) from None

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def read_into(self, key: str, start: int, into: memoryview) -> int:
        data = self.get_range(key, start, len(into))
        into[: len(data)] = data
        return len(data)

    def size(self, key: str) -> int:
        return len(self.get(key))

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > (after or ""))
        return [ObjectInfo(key, len(self.objects[key])) for key in keys]

    def folders(self) -> list[str]:
        return sorted({key.partition("/")[0] for key in self.objects})

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    def drop_unfinished(self, prefix: str) -> None:
        """Nothing is ever unfinished."""

    def check(self) -> None:
        """Always reachable."""

    def reach(self) -> None:
        """Always reachable."""


MOST_IN_A_ROW = 3
"""Largest number of wrong answers about one object to one actor. More wrong answers cannot be distinguished from
damage."""


class WrongReads:
    """Chooses the wrong answers of a world. Each answer is wrong in one bit with this probability, and then perhaps the
    next answer too."""

    def __init__(self, random: Random, *, chance: float, again_chance: float) -> None:
        self._random, self._chance, self._again_chance = random, chance, again_chance
        self._in_a_row: Counter[tuple[object, str]] = Counter()
        self.count = 0

    def data(self, data: bytes, about: tuple[object, str]) -> bytes:
        """Return the answer, or the answer with one bit flipped. `about` is the actor and the object of the request."""
        if not data or not self._is_due(about):
            return data
        changed, at = bytearray(data), self._random.randrange(8 * len(data))
        changed[at // 8] ^= 1 << at % 8
        return bytes(changed)

    def number(self, number: int, about: tuple[object, str]) -> int:
        """Return the size, or the size with one bit flipped."""
        return number ^ 1 << self._random.randrange(12) if self._is_due(about) else number

    def _is_due(self, about: tuple[object, str]) -> bool:
        before = self._in_a_row[about]
        chance = self._again_chance if before else self._chance
        is_due = before < MOST_IN_A_ROW and self._random.random() < chance
        self._in_a_row[about] = before + 1 if is_due else 0
        self.count += is_due
        return is_due


class View:
    """The store as one actor sees it."""

    url, is_remote = "memory", False

    def __init__(self, inner: MemoryStore, wrong: WrongReads, let_others_run: Callable[[], None]) -> None:
        self._inner, self._wrong, self._let_others_run = inner, wrong, let_others_run
        self._thread = threading.get_ident()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._pause()
        return self._inner.put_if_absent(key, data)

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        self._pause()
        self._inner.put(key, data, durable=durable)

    def get(self, key: str) -> bytes:
        self._pause()
        return self._wrong.data(self._inner.get(key), (self, key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._pause()
        return self._wrong.data(self._inner.get_range(key, start, length), (self, key))

    def read_into(self, key: str, start: int, into: memoryview) -> int:
        self._pause()
        data = self._wrong.data(self._inner.get_range(key, start, len(into)), (self, key))
        into[: len(data)] = data
        return len(data)

    def size(self, key: str) -> int:
        self._pause()
        return self._wrong.number(self._inner.size(key), (self, f"size of {key}"))

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        self._pause()
        found = self._inner.list_objects(prefix, after=after)
        wrong = self._wrong
        return [ObjectInfo(wrong.data(key.encode(), (self, prefix)).decode("latin-1"), size) for key, size in found]

    def folders(self) -> list[str]:
        self._pause()
        return self._inner.folders()

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self._pause()
            self._inner.delete([key])

    def drop_unfinished(self, prefix: str) -> None:
        """Nothing is ever unfinished."""

    def check(self) -> None:
        """Always reachable."""

    def reach(self) -> None:
        """Always reachable."""

    def afresh(self) -> View:
        """Read the object in another way. This answer may also be wrong."""
        return self

    def _pause(self) -> None:
        if threading.get_ident() == self._thread:  # A reading thread of an actor has no turn of its own.
            self._let_others_run()
