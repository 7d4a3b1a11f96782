"""Commits the best checkpoint of a Hugging Face Trainer as a part of the folder that a run commits."""

from __future__ import annotations

import filecmp
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME

log = logging.getLogger(__name__)

_BEST = "segue-best"
_OF_TRAINING = ("optimizer", "scheduler", "scaler", "rng_state", "training_args", TRAINER_STATE_NAME)
"""Prefixes of the names of files that the Trainer needs only to continue training.

The model does not need these files.
"""


def best_files(best: Path, folder: Path) -> tuple[dict[str, str], dict[str, Path]]:
    """Return the model's files in the best checkpoint, and the files to commit for it in addition to the folder.

    The first part of the result gives the committed name of each file, by the file's own name. The second part of the
    result is empty if the folder itself is the best checkpoint. Both parts of the result are empty if the best
    checkpoint no longer exists.
    """
    if best.name == folder.name:
        return {name: name for name in _model_files(folder)}, {}
    names = {name: f"{_BEST}/{name}" for name in _model_files(best)}
    return names, {committed: best / name for name, committed in names.items()}


def put_best(restored: Path, output: Path) -> str | None:
    """Write the best checkpoint of a restored folder below the Trainer's output folder.

    Return the place of the best checkpoint. Return None if the Trainer had no best checkpoint. If a crash interrupts
    the write, the next start writes the best checkpoint again.
    """
    state = json.loads((restored / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    known = state.get("best_model_checkpoint")
    if not known:
        return None
    name = Path(known).name
    place = output / name
    source = restored if name == f"checkpoint-{state['global_step']}" else restored / _BEST
    names = [*_model_files(source)]
    if not names and not place.is_dir():
        log.warning("the best checkpoint was not committed and is not on this machine: %s", place)
    for each in names:
        _put(source / each, place / each)
    return str(place)


def _model_files(folder: Path) -> Iterator[str]:
    if not folder.is_dir():
        return
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and not name.startswith((*_OF_TRAINING, ".segue", f"{_BEST}/")):
            yield name


def _put(source: Path, place: Path) -> None:
    """Write the committed bytes even if the file exists, because a kill may have cut the file off."""
    if place.is_file() and filecmp.cmp(source, place, shallow=False):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".segue-{place.name}")
    shutil.copyfile(source, temporary)
    temporary.replace(place)
