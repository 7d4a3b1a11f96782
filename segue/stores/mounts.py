"""Reads the type and the options of the file system of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_MOUNTS = Path("/proc/self/mounts")
_LOOKS_UP = {"lookupcache=pos", "lookupcache=none", "noac"}
"""Options of an NFS mount with which a client does not cache that a file is missing."""


class Mount(NamedTuple):
    """The type and the options of a file system, with the kernel's names."""

    kind: str
    options: tuple[str, ...]

    @property
    def hides_new_objects(self) -> bool:
        """Whether the NFS client may cache for up to a minute that a file does not exist."""
        return self.kind.startswith("nfs") and _LOOKS_UP.isdisjoint(self.options)


def mount_of(folder: Path, *, mounts: Path = _MOUNTS) -> Mount:
    """Return the file system of a folder. If the file system cannot be found, its type is empty."""
    try:
        lines = [line.split(" ") for line in mounts.read_text().splitlines()]
    except OSError:
        return Mount("", ())
    places = [(Path(words[1].replace("\\040", " ")), Mount(words[2], tuple(words[3].split(",")))) for words in lines]
    above = [(len(place.parts), mount) for place, mount in places if folder.resolve().is_relative_to(place)]
    return max(above, default=(0, Mount("", ())))[1]
