"""Checks a run's `[ray]` table before the start. The command is `python -m segue.launch.ray.ray_problems`.

If a cluster does not answer, a connection to the cluster may block for minutes. If the head restarts, the process with
the connection ends. A separate process therefore makes the check, and this process stops waiting after some time.
"""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys

from pydantic import TypeAdapter

from segue.credentials import redacted
from segue.errors import RaySetupError
from segue.launch.problem import Problem, refusals
from segue.launch.ray.problems import failed_check, unreachable
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_NO_ANSWER = 3
"""Exit code of a check if no cluster has answered. Exit code 1 has another meaning in Python."""
_LONGEST_SECONDS = 120.0
_PROBLEMS = TypeAdapter(list[Problem])
NOT_INSTALLED = Problem(
    what="this machine has no Ray", fix="pip install 'segue[ray]' where segments run, or remove [ray] from the run spec"
)


def has_ray() -> bool:
    """Whether Ray is installed on this machine."""
    return importlib.util.find_spec("ray") is not None


def ray_problems(spec: RunSpec, *, longest_seconds: float = _LONGEST_SECONDS) -> list[Problem]:
    """Return the problems that prevent trainers from running on the cluster, and the parts that could not be checked.

    The list is empty if the run has no `[ray]` table. The function waits for the cluster's answer for at most
    `longest_seconds`.
    """
    if spec.ray is None:
        return []
    if not has_ray():
        return [NOT_INSTALLED]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "segue.launch.ray.ray_problems"],
            input=spec.model_dump_json().encode(),
            capture_output=True,
            timeout=longest_seconds,
            check=False,
            start_new_session=True,  # A signal to this process's group is no signal to it.
        )
    except subprocess.TimeoutExpired:
        return [unreachable(spec.ray.address, seconds=longest_seconds)]
    if done.returncode == 0:
        return _PROBLEMS.validate_json(done.stdout)
    written = redacted(done.stderr.decode(errors="replace"))
    log.warning("the Ray cluster was not checked: %s", written.strip())
    if done.returncode == _NO_ANSWER:
        return [unreachable(spec.ray.address)]
    return [failed_check(done.returncode, written)]


def require_ray(spec: RunSpec) -> None:
    """Refuse a run whose trainers cannot run on the Ray cluster.

    Raises:
        RaySetupError: there are problems. The message has each problem and its fix.
    """
    problems = refusals(ray_problems(spec))
    if problems:
        raise RaySetupError(problems=problems)


def main() -> int:
    """Read a run spec from standard input, and write the problems of the run. Return the exit code."""
    spec = RunSpec.model_validate_json(sys.stdin.buffer.read())
    assert spec.ray is not None
    from segue.launch.ray.cluster import connect, problems_of

    try:
        if not connect(spec.ray.address):
            return _NO_ANSWER
        found = problems_of(spec)
    except RaySetupError as error:
        found = [Problem(what=what, fix=fix) for what, fix in error.problems]
    sys.stdout.buffer.write(_PROBLEMS.dump_json(found))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
