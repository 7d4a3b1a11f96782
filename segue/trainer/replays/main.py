"""The process of a replay. The command is `python -m segue.trainer.replays.main PARENT ANSWER`, with a request on
standard input.

The process writes the rows of the replayed steps and the setup to the file ANSWER. The replay process ends when the
process PARENT ends.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from segue.clock import SystemClock
from segue.errors import NonDeterministicOperationError, SegueError
from segue.runlog.history import read_history
from segue.runlog.open import open_log
from segue.stores.local import LocalStore
from segue.stores.retry import patiently
from segue.trainer.health.failures import without_traceback
from segue.trainer.process.environment import allow_deterministic_alone
from segue.trainer.replays.fresh import ANSWER, FreshAnswer, ReplayRequest
from segue.trainer.replays.replay import replay
from segue.trainer.replays.replay_process import begin_beside, leave

log = logging.getLogger("segue.replay")


def main() -> int:
    """Replay the requested steps, and return the exit code."""
    request = ReplayRequest.model_validate_json(sys.stdin.buffer.read())
    begin_beside(int(sys.argv[1]))
    spec = request.assignment.spec
    line = f"%(levelname)s {spec.run_id} replay | %(message)s"
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=line)
    runlog = open_log(spec, clock=SystemClock())
    checkpoint = patiently(lambda: read_history(runlog), what="log").checkpoint(request.checkpoint)
    if checkpoint is None:
        log.warning("the run's log has no checkpoint for the replay step=%d", request.checkpoint.step)
        return 1
    copy = LocalStore(Path(request.copy_folder)) if request.copy_folder is not None else None
    if request.only_deterministic:
        allow_deterministic_alone()
    try:
        made = replay(
            request.assignment,
            runlog,
            checkpoint,
            steps=request.steps,
            copy=copy,
            with_formats=True,
            watched=request.watched,
        )
        answer = FreshAnswer(
            made.rows,
            json.dumps(made.setup_trees),
            unit=made.unit,
            environment=made.environment,
            recipe_changes=made.recipe_changes,
            digests=made.digests,
        )
    except SegueError as error:
        log.warning("replay could not be done reason=%s", error)
        return error.exit_code
    except (Exception, SystemExit) as error:
        if not (request.only_deterministic and isinstance(without_traceback(error), NonDeterministicOperationError)):
            log.warning("the recipe raised in a replay", exc_info=error)
            return 1
        answer = FreshAnswer((), "{}", is_refused=True)
    Path(sys.argv[2]).write_bytes(ANSWER.dump_json(answer))
    return 0


if __name__ == "__main__":
    leave(main())
