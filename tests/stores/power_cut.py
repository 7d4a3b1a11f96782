"""What a power cut leaves of a folder: what was synced, a file's bytes by its own sync and its name by its folder's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Disk:
    """The disk below `root` while `watched`; at the start everything there is on it."""

    root: Path
    _bytes: dict[int, bytes] = field(default_factory=dict)
    """The synced content of each file, by inode."""
    _names: dict[int, dict[str, tuple[int, bool]]] = field(default_factory=dict)
    """The synced names of each folder, by inode: inode, and whether it is a folder."""
    syncs: int = 0

    def sync(self, path: Path) -> None:
        """What fsync does, by the path of what was opened."""
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            entries = ((entry.name, entry.inode(), entry.is_dir()) for entry in os.scandir(path))
            self._names[found.st_ino] = {name: (inode, is_folder) for name, inode, is_folder in entries}
        else:
            self._bytes[found.st_ino] = path.read_bytes()

    def sync_all(self) -> None:
        """Everything that is there now."""
        for path in (self.root, *self.root.rglob("*")):
            self.sync(path)

    def after_a_cut(self, into: Path) -> Path:
        """A copy of what a machine finds that starts after a power cut now."""
        self._restore(self.root.stat().st_ino, into)
        return into

    def _restore(self, folder: int, into: Path) -> None:
        into.mkdir()
        for name, (inode, is_folder) in self._names.get(folder, {}).items():
            if is_folder:
                self._restore(inode, into / name)
            else:
                # A name may reach the disk before the bytes: the file is empty then.
                (into / name).write_bytes(self._bytes.get(inode, b""))


@contextmanager
def watched(root: Path, monkeypatch: pytest.MonkeyPatch, *, at_each_sync: Any = None) -> Iterator[Disk]:
    """The disk below a folder, as this process syncs it. `at_each_sync` is called with it around each sync."""
    disk, sync = Disk(root), os.fsync
    disk.sync_all()

    def recorded(descriptor: int) -> None:
        sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if not path.is_relative_to(root):
            return
        if at_each_sync is not None:
            at_each_sync(disk)
        disk.sync(path)
        disk.syncs += 1
        if at_each_sync is not None:
            at_each_sync(disk)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", recorded)
        yield disk
