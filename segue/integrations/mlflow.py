"""Shows all segments of a run as one MLflow run, with each step once.

Names are changed if MLflow does not accept them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segue.credentials import redacted
from segue.errors import MissingExtraError
from segue.integrations.mlflow_batches import MlflowSender
from segue.integrations.tracker import CommittedRow, TrackedEnd, TrackedRun

if TYPE_CHECKING:
    from mlflow.entities import Metric

log = logging.getLogger(__name__)

KEY_TAG, MODEL_TAG = "segue.key", "segue.model"
NAMES_TAG, LEFT_OUT_TAG = "segue.renamed", "segue.left_out"
SENT_TAG, SENDING_TAG = "segue.sent_step", "segue.sending_step"
_MOST_OF_PARAM, _MOST_OF_TAG = 500, 5000
"""Maximum lengths in characters of a parameter and of a tag that every version of MLflow accepts."""
_MODEL_SECONDS = 900.0
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_MOST_OF_NAME = 240
"""Maximum length of a name in characters, without a digest. MLflow accepts 250 characters in all."""
_OTHER = re.compile(r"[^\w.\- /]")


class MlflowTracker:
    """Sends rows to an MLflow server or folder.

    The tracker writes the last step of a batch to one tag before the batch, and to another tag after the batch. If the
    tags differ, a process was killed between the two writes, and the tracker reads the rows back from MLflow. MLflow
    with a database drops repeated rows itself, but MLflow with a folder does not.
    """

    def __init__(self, *, tracking_uri: str | None = None, experiment: str = "segue", model: bool = True) -> None:
        """If `tracking_uri` is None, MLflow's own settings apply, such as `MLFLOW_TRACKING_URI`.

        MLflow's settings also provide credentials. If `model` is true, the tracker also logs the weights of a finished
        run. To log weights, the parent needs torch and the recipe.

        Raises:
            MissingExtraError: MLflow is not installed.
        """
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise MissingExtraError(extra="mlflow", needed_for="The tracker mlflow") from None
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        self._client = MlflowClient(tracking_uri=tracking_uri)
        self._experiment, self._with_model = experiment, model
        self._run: TrackedRun | None = None
        self._run_id = ""
        self._arrived: dict[str, int] = {}
        self._left_out: dict[str, str] = {}
        self._batches = MlflowSender(self._client, "", left_out=self._left_out)
        self._names = SentNames()

    @property
    def run_id(self) -> str:
        """MLflow's id of the run, after `begin`."""
        return self._run_id

    def begin(self, run: TrackedRun) -> int:
        """Create or find the MLflow run, as the protocol `Tracker` requires.

        If two processes create a run at the same moment, both continue with the older run.
        """
        self._run = run
        self._run_id = self._found(run) or self._created(run)
        self._batches = MlflowSender(self._client, self._run_id, left_out=self._left_out)
        known = self._client.get_run(self._run_id)
        self._names = SentNames(_names_in(known.data.tags.get(NAMES_TAG, "")))
        self._log_params(run.params, known.data.params)
        if known.info.status != "RUNNING":  # The run had ended, and was started again.
            self._client.update_run(self._run_id, status="RUNNING")
        tags = known.data.tags
        sent, sending = (int(tags.get(name, "0")) for name in (SENT_TAG, SENDING_TAG))
        self._arrived = self._newest_steps() if sending > sent else {}
        return sent

    def log(self, rows: Sequence[CommittedRow]) -> None:
        """Log the rows, as the protocol `Tracker` requires."""
        last = rows[-1].step
        self._client.set_tag(self._run_id, SENDING_TAG, str(last))
        renamed = self._names.learn(name for row in rows for name in row.values)
        for name, sent in renamed.items():
            log.warning("MLflow refuses the name of a metric, sending another name name=%s sent_as=%s", name, sent)
        if renamed:
            self._set_tags({NAMES_TAG: json.dumps(self._names.changed, ensure_ascii=False)})
        self._batches.send("metrics", [metric for row in rows for metric in self._missing(row)])
        self._client.set_tag(self._run_id, SENT_TAG, str(last))

    def end(self, end: TrackedEnd) -> None:
        """Close the MLflow run, as the protocol `Tracker` requires.

        Files become artifacts below `segue/`. A second call replaces these files.
        """
        for file in end.files:
            self._client.log_artifact(self._run_id, str(file), artifact_path="segue")
        if self._with_model and end.status == "finished":
            self._log_model(end.tags.get("segue.step", ""))
        refused = {LEFT_OUT_TAG: json.dumps(self._left_out)} if self._left_out else {}
        self._set_tags({"segue.reason": end.reason, **end.tags, **refused})
        self._client.set_terminated(self._run_id, _STATUS[end.status], end_time=_milliseconds(end.at))

    def _found(self, run: TrackedRun) -> str | None:
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            return None
        key = run.key.replace("'", "")
        found = self._client.search_runs(
            [experiment.experiment_id],
            filter_string=f"tags.`{KEY_TAG}` = '{key}'",
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
            max_results=1,
        )
        return found[0].info.run_id if found else None

    def _created(self, run: TrackedRun) -> str:
        from mlflow.exceptions import MlflowException

        try:
            experiment_id = self._client.create_experiment(self._experiment)
        except MlflowException:  # The experiment exists already, perhaps since a moment ago.
            experiment = self._client.get_experiment_by_name(self._experiment)
            if experiment is None:
                raise
            experiment_id = experiment.experiment_id
        made = self._client.create_run(experiment_id, run_name=run.run_id, tags={**run.tags, KEY_TAG: run.key})
        first = self._found(run)
        if first is not None and first != made.info.run_id:
            self._client.delete_run(made.info.run_id)
            return first
        return str(made.info.run_id)

    def _log_params(self, params: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Log the missing parameters.

        The values of parameters never change, so two processes may log them at the same time.
        """
        from mlflow.entities import Param

        names = SentNames()
        names.learn(params)
        for name, value in params.items():
            if len(value) > _MOST_OF_PARAM and names[name] not in known:
                log.warning("parameter cut off for MLflow name=%s characters=%d", name, len(value))
        values = {names[name]: value[:_MOST_OF_PARAM] for name, value in params.items() if names[name] not in known}
        self._batches.send("params", [Param(name, value) for name, value in values.items()])

    def _newest_steps(self) -> dict[str, int]:
        """Return the newest step of each metric in MLflow."""
        names = self._client.get_run(self._run_id).data.metrics
        return {
            name: max((metric.step for metric in self._client.get_metric_history(self._run_id, name)), default=0)
            for name in names
        }

    def _missing(self, row: CommittedRow) -> Iterator[Metric]:
        from mlflow.entities import Metric

        for name, value in row.values.items():
            sent = self._names[name]
            if row.step > self._arrived.get(sent, 0):
                yield Metric(sent, value, _milliseconds(row.at), row.step)

    def _log_model(self, step: str) -> None:
        """Log the weights as `model`. If the weights of this step are already logged, do nothing.

        If the weights cannot be logged, the MLflow run ends without them.
        """
        assert self._run is not None
        if self._client.get_run(self._run_id).data.tags.get(MODEL_TAG, "").endswith(f"(step {step})"):
            return
        with tempfile.TemporaryDirectory(prefix="segue-mlflow-") as place:
            folder, said = Path(place) / "model", Path(place) / "said"
            arguments = (self._run.run_id, self._run.store.model_dump_json(), str(folder), str(said))
            command = [sys.executable, "-m", "segue.integrations.mlflow_model", *arguments]
            why = _failure_of(command)
            if why is not None:
                log.warning("the model was not logged to MLflow reason=%s", why)
                self._set_tags({MODEL_TAG: f"not logged: {why}"})
                return
            self._client.log_artifacts(self._run_id, str(folder), artifact_path="model")
            self._set_tags({MODEL_TAG: f"{said.read_text()} (step {step})"})

    def _set_tags(self, tags: dict[str, Any]) -> None:
        from mlflow.entities import RunTag

        cut = {allowed_name(name): str(value)[:_MOST_OF_TAG] for name, value in tags.items()}
        self._batches.send("tags", [RunTag(name, value) for name, value in cut.items()])


def _names_in(tag: str) -> dict[str, str]:
    """Return the names in a tag. If the tag was cut off, the result is empty."""
    try:
        found = json.loads(tag or "{}")
    except ValueError:
        return {}
    return {str(name): str(sent) for name, sent in found.items()} if isinstance(found, dict) else {}


def _failure_of(command: Sequence[str]) -> str | None:
    """Run a process. If the process fails, return the reason. If it succeeds, return None."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MODEL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it took longer than {_MODEL_SECONDS:.0f} s"
    if done.returncode == 0:
        return None
    return redacted((done.stderr.strip().splitlines() or [f"its process ended with {done.returncode}"])[-1])


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def allowed_name(name: str) -> str:
    """Return the name if MLflow accepts it. If MLflow refuses the name, return a similar name, for example `acc_at_5`
    for `acc@5`.

    MLflow accepts letters, digits, `_`, `-`, `.`, spaces, and `/` between parts that are valid file names.
    """
    text = _OTHER.sub("_", name.replace("@", "_at_"))
    text = "/".join(part for part in text.split("/") if part not in ("", ".", "..")) or "_"
    if text.startswith(".."):
        text = f"_{text}"
    return text if len(text) <= _MOST_OF_NAME else with_digest(text, name)


def with_digest(text: str, name: str) -> str:
    """Append a digest of the name to the text, so that different names give different results."""
    return f"{text[:_MOST_OF_NAME]}_{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"


class SentNames:
    """The MLflow name for each name of a run. Two names of a run never get the same MLflow name."""

    def __init__(self, changed: Mapping[str, str] | None = None) -> None:
        """`changed` contains the MLflow names that an earlier process chose for refused names."""
        self._sent = dict(changed or {})

    def __getitem__(self, name: str) -> str:
        return self._sent[name]

    def learn(self, names: Iterable[str]) -> dict[str, str]:
        """Choose an MLflow name for each new name. Return the new names whose MLflow name differs.

        Names that MLflow accepts unchanged come first. If a changed name is already in use, the changed name gets a
        digest.
        """
        found = {}
        for name in sorted({*names} - self._sent.keys(), key=lambda each: (allowed_name(each) != each, each)):
            text = allowed_name(name)
            if text in self._sent.values():
                text = with_digest(text, name)
            self._sent[name] = text
            if text != name:
                found[name] = text
        return found

    @property
    def changed(self) -> dict[str, str]:
        """All names whose MLflow name differs."""
        return {name: text for name, text in self._sent.items() if text != name}
