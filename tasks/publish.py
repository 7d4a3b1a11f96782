"""The doorway to the UI: what a run looks like, as artifacts."""

from __future__ import annotations

import base64
import re

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from segue.console import segment_rows
from segue.history import History, read_history
from segue.picture import draw
from segue.runlog import RunLog
from segue.spec import RunSpec
from segue.stores import open_store


@task(name="publish-run", retries=0, cache_policy=NO_CACHE)
def publish_run(spec: RunSpec) -> None:
    """Put the run's table and picture where the person on call looks."""
    runlog = RunLog(open_store(spec.store), spec.run_id).reload()
    picture = base64.b64encode(draw(runlog)).decode()
    text = f"![the run](data:image/png;base64,{picture})\n\n{summary(spec, read_history(runlog))}"
    create_markdown_artifact(text, key=artifact_key(spec.run_id), description=f"Run {spec.run_id}")


def artifact_key(run_id: str) -> str:
    """Prefect wants lower-case letters, digits and dashes."""
    return "segue-" + re.sub(r"[^a-z0-9-]+", "-", run_id).strip("-")


def summary(spec: RunSpec, history: History) -> str:
    """The run as a markdown table."""
    rows = segment_rows(history)
    last = history.decisions[-1].reason if history.decisions else "nothing decided yet"
    lines = [f"**{spec.run_id}**: step {history.committed_step} of {spec.steps}; {last}", ""]
    if rows:
        lines += ["| " + " | ".join(name.replace("_", " ") for name in rows[0]) + " |", "|" + "---|" * len(rows[0])]
        lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines)
