"""Loads the version in service, for programs that serve the model."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from segue.errors import (
    BadKeyError,
    MissingObjectError,
    NoProgramError,
    NotInServiceError,
    StoreUnreachableError,
    UnknownModelError,
)
from segue.retraining.history import Models
from segue.retraining.models import ModelsLog
from segue.retraining.versions.version_files import get_artifact, program_of, state_of
from segue.runlog.open import DEFAULT_STORE
from segue.spec import StoreSpec
from segue.stores import StoreReadError, open_store
from segue.stores.base import Store, StoreGoneError

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@overload
def load_model(
    name: str,
    *,
    store: StoreSpec | str | Path = ...,
    version: int | None = ...,
    form: Literal["weights"] = ...,
) -> OrderedDict[str, Any]: ...
@overload
def load_model(
    name: str, *, store: StoreSpec | str | Path = ..., version: int | None = ..., form: Literal["program"]
) -> ExportedProgram: ...
def load_model(
    name: str,
    *,
    store: StoreSpec | str | Path = DEFAULT_STORE,
    version: int | None = None,
    form: Literal["weights", "program"] = "weights",
) -> OrderedDict[str, Any] | ExportedProgram:
    """Return the weights of the version in service, or of another version, as a `state_dict()` of CPU tensors.

    If `form` is "program", the result is the program of torch.export with which the version was published. The
    `module()` of the program runs without the user's code. The format of torch.export may contain code. Load a program
    only from a store that no untrusted person can write. The function checks the SHA-256 of the bytes and writes
    nothing. Retention never prunes the files of a version.

    Raises:
        UnknownModelError, UnknownVersionError: there is no such model or version.
        NotInServiceError: no version of the model is in service, and no version was named.
        NoProgramError: the version was published without a program.
        DamagedVersionError: the version's file is damaged.
        StoreUnreachableError, StoreReadError: the store cannot be read.
    """
    opened = open_store(store)
    models = known_model(store, name)
    number = version if version is not None else require_in_service(models)
    candidate = models.version(number)
    if form == "weights":
        return state_of(get_artifact(opened, candidate.weights))
    if candidate.program is None:
        raise NoProgramError(name=name, version=number)
    return program_of(get_artifact(opened, candidate.program))


def known_model(store: StoreSpec | str | Path, name: str) -> Models:
    """Return the versions of a model in a store. The function writes nothing.

    Raises:
        UnknownModelError: the store has no model with this name.
        StoreUnreachableError: the store cannot be read.
    """
    opened = open_store(store)
    try:
        models = ModelsLog(opened, name, spec=store if isinstance(store, StoreSpec) else None).read()
    except (BadKeyError, MissingObjectError, StoreGoneError):
        raise UnknownModelError(name=name, store=opened.url) from None
    except StoreReadError as error:
        fix = "check --store, --endpoint-url, the network and your access."
        raise StoreUnreachableError(url=opened.url, why=f"it cannot be read ({error.why}).", fix=fix) from None
    if not models.events and not models.slots:
        raise UnknownModelError(name=name, store=opened.url)
    return models


def model_or_empty(store: StoreSpec | str | Path, name: str) -> Models:
    """Return the versions and slots of a model. The result is empty if the store has no such model.

    Raises:
        StoreUnreachableError: the store cannot be read.
    """
    try:
        return known_model(store, name)
    except UnknownModelError:
        return Models(name, (), {})


def require_in_service(models: Models) -> int:
    """Return the number of the version in service.

    Raises:
        NotInServiceError: no version is in service.
    """
    if models.in_service is None:
        raise NotInServiceError(name=models.name)
    return models.in_service


def place_of(store: Store, key: str) -> str:
    """Return the address of a file of the store for other programs, as a path or a URL."""
    url = store.url.removeprefix("file://").rstrip("/")
    return f"{url}/{key}"
