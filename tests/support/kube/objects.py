"""Jobs and pods of the cluster, with the changes that watchers read."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import deque
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

Plural = Literal["jobs", "pods"]
Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name."""

KINDS: Mapping[str, tuple[str, str]] = {"pods": ("Pod", "v1"), "jobs": ("Job", "batch/v1")}


class Change(NamedTuple):
    """One change of an object, as a watch shows it."""

    version: int
    plural: Plural
    kind: str
    """ADDED, MODIFIED or DELETED."""
    object: Object


class Objects:
    """All objects. Each change gets the next resource version."""

    def __init__(self) -> None:
        self._objects: dict[Plural, dict[Key, Object]] = {"pods": {}, "jobs": {}}
        self._changes: deque[Change] = deque(maxlen=5000)
        self._changed = asyncio.Condition()
        self.version = 1

    async def add(self, plural: Plural, found: Object) -> None:
        """Store a new object, with what a server gives it."""
        kind, api = KINDS[plural]
        found.update(kind=kind, apiVersion=api)
        found["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=now())
        self._objects[plural][key_of(found)] = found
        await self._note(plural, "ADDED", found)

    async def change(self, plural: Plural, found: Object) -> None:
        """Publish the state of an object; one that is gone stays gone."""
        if self.find(plural, key_of(found)) is found:
            await self._note(plural, "MODIFIED", found)

    async def remove(self, plural: Plural, found: Object) -> None:
        """Remove an object, once."""
        if self.find(plural, key_of(found)) is found:
            del self._objects[plural][key_of(found)]
            await self._note(plural, "DELETED", found)

    def find(self, plural: Plural, key: Key) -> Object | None:
        return self._objects[plural].get(key)

    def select(self, plural: Plural, *, namespace: str | None = None, selector: str = "") -> list[Object]:
        """The objects of a namespace (None: of all) whose labels a selector takes."""
        return [found for found in self._objects[plural].values() if _is_selected(found, namespace, selector)]

    async def watch(
        self, plural: Plural, *, since: int, namespace: str | None, selector: str
    ) -> AsyncIterator[Change | None]:
        """Every change after a version, without end; None now and then, when there is none."""
        seen = since
        while True:
            for change in [change for change in self._changes if change.version > seen]:
                seen = change.version
                if change.plural == plural and _is_selected(change.object, namespace, selector):
                    yield change
            if not await self._has_changed_since(seen):
                yield None

    async def _has_changed_since(self, version: int) -> bool:
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(lambda: self.version > version), 5)
            except TimeoutError:
                return False
        return True

    async def _note(self, plural: Plural, kind: str, found: Object) -> None:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self._changes.append(Change(self.version, plural, kind, json.loads(json.dumps(found))))
        async with self._changed:
            self._changed.notify_all()


def key_of(found: Object) -> Key:
    return found["metadata"]["namespace"], found["metadata"]["name"]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_selected(found: Object, namespace: str | None, selector: str) -> bool:
    if namespace is not None and found["metadata"]["namespace"] != namespace:
        return False
    labels = found["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        name, equals, value = part.partition("=")
        if name not in labels or (equals and labels[name] != value.lstrip("=")):
            return False
    return True
