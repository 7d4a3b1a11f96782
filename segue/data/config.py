"""Makes the config of a recipe or a program, including the paths of the run's files.

The module also passes the config to the processes that a program starts.
"""

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
"""Environment variable with the path of a JSON file that contains the config.

The variable contains a path because the config may be too long for an environment variable.
"""


def config_with_data(spec: RunSpec) -> dict[str, Any]:
    """Return the config of the recipe or program.

    If the run has data, the config also contains the entries `data` and `reading`. `data` is the list of the files'
    paths. `reading` defines how `segue.data_frame` reads the files.

    Raises:
        DataChangedError, DataUnreadableError, MissingExtraError: a file cannot be used, as for `checked_copies`.
    """
    if spec.data is None:
        return spec.config
    reading = spec.data.passed_reading
    data = {"data": [str(each) for each in checked_copies(spec.data)]}
    return spec.config | data | ({"reading": reading} if reading else {})


@contextmanager
def config_for_processes(config: Mapping[str, Any]) -> Iterator[None]:
    """While the block runs, `SEGUE_CONFIG` names a file with this config.

    Processes that start inside the block read the file. The end of the block removes the file. If this process is
    killed, the file stays in the folder for temporary files.
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
    """Return the config in the file that `SEGUE_CONFIG` names. If the variable is not set, return an empty config.

    Raises:
        SessionError: the file cannot be read, or does not contain a JSON object.
    """
    name = os.environ.get(CONFIG_VARIABLE)
    if name is None:
        return {}
    fix = f"set {CONFIG_VARIABLE} to the path of a JSON file with an object, or unset it."
    try:
        config = json.loads(Path(name).read_bytes(), parse_constant=_refuse_constant)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SessionError(what=f"{CONFIG_VARIABLE} names {name}, which is not a config ({why}).", fix=fix) from None
    if not isinstance(config, dict):
        what = f"{CONFIG_VARIABLE} names {name}, which holds a {type(config).__name__}, not an object."
        raise SessionError(what=what, fix=fix)
    return config


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")
