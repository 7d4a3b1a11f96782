"""The config of a recipe or a program, with the run's files; the processes that a program starts also get it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from segue.data.files import checked_copies
from segue.errors import SessionError
from segue.spec import RunSpec

CONFIG_VARIABLE = "SEGUE_CONFIG"
"""Names a JSON file with the config: a variable could not hold the config of a run with many files."""


def config_with_data(spec: RunSpec) -> dict[str, Any]:
    """The config of the recipe or program: the spec's config, and, for a run with data, `data` (a list of the files'
    paths) and `reading` (how `segue.data_frame` reads them).

    Raises:
        DataChangedError, DataUnreadableError, MissingExtraError: as `checked_copies`.
    """
    if spec.data is None:
        return spec.config
    reading = spec.data.passed_reading
    data = {"data": [str(each) for each in checked_copies(spec.data)]}
    return spec.config | data | ({"reading": reading} if reading else {})


@contextmanager
def config_for_processes(config: Mapping[str, Any]) -> Iterator[None]:
    """A block in which `SEGUE_CONFIG` names a file with this config, for the processes that are started there.

    The file is gone afterwards; a kill leaves it among the temporary files.
    """
    before = os.environ.pop(CONFIG_VARIABLE, None)
    try:
        if not config:
            yield
            return
        with tempfile.NamedTemporaryFile("w", prefix="segue-config-", suffix=".json", encoding="utf-8") as file:
            json.dump(config, file)
            file.flush()
            os.environ[CONFIG_VARIABLE] = file.name
            yield
    finally:
        os.environ.pop(CONFIG_VARIABLE, None)
        if before is not None:
            os.environ[CONFIG_VARIABLE] = before


def config_of_environment() -> dict[str, Any]:
    """The config in the file that `SEGUE_CONFIG` names; an empty one without the variable.

    Raises:
        SessionError: the file cannot be read, or holds no table of JSON values.
    """
    name = os.environ.get(CONFIG_VARIABLE)
    if name is None:
        return {}
    fix = f"let {CONFIG_VARIABLE} name a JSON file with an object in it, or unset it."
    try:
        config = json.loads(Path(name).read_bytes(), parse_constant=_refuse_constant)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SessionError(what=f"{CONFIG_VARIABLE} names {name}, which is no config ({why}).", fix=fix) from None
    if not isinstance(config, dict):
        what = f"{CONFIG_VARIABLE} names {name}, which holds a {type(config).__name__}, not an object."
        raise SessionError(what=what, fix=fix)
    return config


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")
