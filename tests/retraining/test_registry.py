"""The mirror of a model's versions in an MLflow registry: each once, with its files, and an alias that follows."""

from __future__ import annotations

import pytest

from segue.retraining.spec import RegistrySpec
from segue.retraining.versions.mlflow_mirror import mirror
from segue.stores import open_store
from tests.cli.test_retraining_commands import version
from tests.retraining.monthly import Monthly


@pytest.fixture
def monthly(tmp_path) -> Monthly:
    made = Monthly(tmp_path / "points")
    made.write(1, 2, 3, 4)
    open_store(made.store_folder).check()
    return made


@pytest.mark.matrix
def test_versions_are_registered_once_and_the_alias_follows_what_is_in_service(monthly, tmp_path):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    registry, store = RegistrySpec(tracking_uri=uri), open_store(monthly.store_folder)
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_experiment("segue-models", artifact_location=str(tmp_path / "artifacts"))
    version(monthly, 4, error=1.0)
    mirror(registry, monthly.models, store)
    assert client.get_model_version_by_alias("points", "champion").tags["segue.version"] == "1"
    version(monthly, 5, error=0.7, against=1)
    for _ in range(2):
        mirror(registry, monthly.models, store)
    champion = client.get_model_version_by_alias("points", "champion")
    assert champion.tags["segue.version"] == "2"
    assert len(client.search_model_versions("name = 'points'")) == 2
    run = client.get_run(champion.run_id)
    assert run.data.metrics["absolute_error"] == 0.7
    files = {item.path for item in client.list_artifacts(champion.run_id, "model")}
    assert files == {"model/model.safetensors", "model/card.md"}
    monthly.log.choose(1, why="slow")
    mirror(registry, monthly.models, store)
    assert client.get_model_version_by_alias("points", "champion").tags["segue.version"] == "1"
