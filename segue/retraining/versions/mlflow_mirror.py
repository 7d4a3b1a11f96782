"""Mirrors a model in a model registry of MLflow: each version once, and an alias for the version in service."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

from segue.errors import MissingExtraError
from segue.integrations.mlflow import allowed_name
from segue.markup import inline
from segue.retraining.history import Models
from segue.retraining.model_record import Candidate
from segue.retraining.pages import card
from segue.retraining.spec import RegistrySpec
from segue.retraining.versions.version_files import CARD, PROGRAM, WEIGHTS, get_artifact
from segue.stores.base import Store

log = logging.getLogger(__name__)

_VERSION, _STORE = "segue.version", "segue.store"
_EXPERIMENT = "segue-models"


def mirror(registry: RegistrySpec, models: Models, store: Store) -> None:
    """Register the versions that the registry lacks, and set the registry's alias to the version in service.

    Each version becomes an MLflow run, with the weights, the program and the card as artifacts. A repeated call is
    safe.

    Raises:
        MissingExtraError: mlflow is not installed.
        Exception: the MLflow server does not answer or refuses the request. mlflow defines the type.
    """
    client = _client(registry)
    name = registry.name or models.name
    known = _known(client, name, store)
    for number, version in models.candidates.items():
        if number not in known:
            source, run_id = _logged(client, models, number, store)
            tags = _tags(version, number, store)
            made = client.create_model_version(name, source, run_id=run_id, tags=tags, description=inline(version.why))
            known[number] = str(made.version)
            log.info("version registered name=%s version=%d as=%s", name, number, made.version)
    if models.in_service is not None:
        client.set_registered_model_alias(name, registry.alias, known[models.in_service])


def _client(registry: RegistrySpec) -> Any:
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise MissingExtraError(extra="mlflow", needed_for="The mirror of a model registry") from None
    return MlflowClient(tracking_uri=registry.tracking_uri, registry_uri=registry.tracking_uri)


def _known(client: Any, name: str, store: Store) -> dict[int, str]:
    """Return the registry's version number of each version of segue."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    found = client.search_model_versions(f"name = '{name}'")
    mine = [each for each in found if each.tags.get(_STORE) == store.url and _VERSION in each.tags]
    return {int(each.tags[_VERSION]): each.version for each in mine}


def _logged(client: Any, models: Models, number: int, store: Store) -> tuple[str, str]:
    """Store a version's files as artifacts of a new MLflow run. Return the address of the files and the run's id."""
    version = models.version(number)
    found = client.get_experiment_by_name(_EXPERIMENT)
    experiment = found.experiment_id if found is not None else client.create_experiment(_EXPERIMENT)
    run = client.create_run(experiment, tags=_tags(version, number, store), run_name=f"{models.name}-v{number}")
    run_id = str(run.info.run_id)
    for each in version.comparisons:
        if each.value is not None:
            client.log_metric(run_id, allowed_name(each.metric), each.value)
    files = {WEIGHTS: version.weights} | ({PROGRAM: version.program} if version.program is not None else {})
    with tempfile.TemporaryDirectory(prefix="segue-registry-") as folder:
        for file, artifact in files.items():
            Path(folder, file).write_bytes(get_artifact(store, artifact))
        Path(folder, CARD).write_text(card(models, number), encoding="utf-8")
        client.log_artifacts(run_id, folder, "model")
    client.set_terminated(run_id)
    return f"{client.get_run(run_id).info.artifact_uri}/model", run_id


def _tags(version: Candidate, number: int, store: Store) -> dict[str, str]:
    return {_VERSION: str(number), _STORE: store.url, "segue.run": version.run_id}
