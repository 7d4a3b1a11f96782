"""Defines common parts of the tables of a run spec: the setting names of version 0.1, and reading TOML."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Any

from pydantic import model_validator

from segue.errors import SpecError
from segue.records import FiniteValue

log = logging.getLogger(__name__)

RENAMED = {
    "checkpoints.arenas": "staging_buffers",
    "continuity.fire_drill": "rehearsal",
    "liveness.lease_seconds": "heartbeat_timeout_seconds",
}
"""Renamed settings of version 0.1, as section.old_name -> new name. segue logs a warning for each old name."""


class Section(FiniteValue):
    """A table of a run spec that also accepts the setting names of version 0.1, for old logs."""

    @model_validator(mode="before")
    @classmethod
    def _takes_old_names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        old = {name.partition(".")[2]: new for name, new in RENAMED.items() if new in cls.model_fields}
        return {old.get(name, name) if old.get(name) not in data else name: value for name, value in data.items()}


def warn_of_old_names(data: object, *, source: str) -> None:
    """Log a warning for each setting that is given by its old name."""
    for name, new in RENAMED.items():
        section, _, old = name.partition(".")
        table = data.get(section) if isinstance(data, dict) else None
        if isinstance(table, dict) and old in table:
            log.warning("%s: %s is now %s.%s; the old name is read for this version only", source, name, section, new)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table in a TOML file.

    Raises:
        SpecError: the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problem, fix = f"the file cannot be read ({error.strerror})", "check the path and its read permission."
    except UnicodeDecodeError as error:
        problem, fix = f"the file is not text in UTF-8 ({error})", "save the file in UTF-8, or check the path."
    except tomllib.TOMLDecodeError as error:
        problem, fix = f"the file is not TOML ({error})", "correct that line."
    raise SpecError(source=str(path), problems=(problem,), fix=fix)
