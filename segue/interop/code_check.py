"""Compares the user's code with a run's newest checkpoint before segue starts anything for the run.

An attempt compares the whole setup at its resume, after the boot. This module compares the code, without a build.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from segue.continuity.code_hash import code_hashes
from segue.continuity.program_code import passed_to_program, program_hashes
from segue.continuity.recipe_diff import CODE, CONFIG, GLOBALS
from segue.errors import CodeChangedError, MissingObjectError
from segue.recipe import Build
from segue.runlog.history import Checkpoint, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores.base import StoreReadError


def refuse_changed_code(runlog: RunLog, spec: RunSpec, build: Build | None) -> None:
    """Compare two versions of the code of `build` or of a program's command: the present code, and the code of the
    run's newest checkpoint.

    The function compares only names that exist on both sides, because the contents of objects are unknown before
    `build` is called. It compares nothing if the change was accepted, if the config changed too, if Python has another
    version, or if the stored setup is damaged. If it compares nothing, the attempt compares the code later.

    Raises:
        CodeChangedError: a function or class has changed.
        StoreReadError: the log could not be read.
    """
    newest = read_history(runlog).newest
    if newest is None or CODE in spec.continuity.accept:
        return
    if newest.manifest.environment.python != ".".join(platform.python_version_tuple()[:2]):
        return
    committed = _setup_of(runlog, newest)
    if committed is None or committed.get(CONFIG) != _as_committed(spec):
        return
    changed = _changed(committed.get(CODE, {}), _hashes_now(spec, build))
    if changed:
        raise CodeChangedError(run_id=spec.run_id, step=newest.manifest.step, names=tuple(changed))


def _setup_of(runlog: RunLog, checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """Return the stored components of rank 0.

    If they cannot be read, return None. The attempt will report the error.
    """
    # The shards of rank 0 come first, and its index is the first file without tensors.
    name = next((shard.key for shard in checkpoint.manifest.shards if shard.key.endswith(".json")), None)
    try:
        components = json.loads(runlog.store.get(f"{runlog.run_id}/{name}"))["skeletons"] if name else None
    except (MissingObjectError, StoreReadError, ValueError, KeyError, TypeError):
        return None
    return components if isinstance(components, dict) else None


def _hashes_now(spec: RunSpec, build: Build | None) -> Mapping[str, str]:
    if spec.program is not None:
        return program_hashes(spec.program.command, folder=Path.cwd())
    assert build is not None
    return code_hashes([build], home=str(build.__module__).partition(".")[0])


def _as_committed(spec: RunSpec) -> dict[str, str]:
    if spec.program is not None:
        return passed_to_program(spec)
    return {name: json.dumps(value, sort_keys=True) for name, value in spec.config.items()}


def _changed(before: Any, now: Mapping[str, str]) -> Collection[str]:
    """Return the names that both arguments contain, and whose code has changed.

    One name can refer to several functions, for example to lambdas.
    """
    if not isinstance(before, dict):
        return ()
    shared = (name for name in now if name in before and not name.startswith(GLOBALS))
    return [name for name in shared if not set(now[name].split(",")) <= set(str(before[name]).split(","))]
