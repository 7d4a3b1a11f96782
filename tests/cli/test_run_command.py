"""`segue run`: what is refused before anything starts, and how the command ends when it is interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import types
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.steps import open_run
from segue.errors import CodeChangedError, OrchestratorError
from segue.interop.code_check import refuse_changed_code
from segue.runlog.history import read_history
from segue.spec import RunSpec
from tests.cli.test_errors import TINY, Place, refusal

RECIPE = '''
"""A recipe of the user's."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from segue import Recipe

WEIGHT = 1.0
plus, minus = (lambda x: x + 1), (lambda x: x - 1)

def build(config):
    model = nn.Linear(4, 1)
    data = TensorDataset(torch.arange(128.0).reshape(32, 4) / 128)
    return Recipe(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1)),
                  data=DataLoader(data, batch_size=8), loss=loss, after_step=minus)

def loss(model, batch):
    return WEIGHT * model(plus(batch[0])).square().mean()
'''


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path / "place")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Place, int]:
    """A finished run of RECIPE: the place of its store, and its committed step."""
    place = Place(tmp_path_factory.mktemp("trained") / "place")
    place.write("mine.py", RECIPE)
    spec = spec_in(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place.folder)
        runlog = open_run(spec, clock=SystemClock())
        assert run_here(spec, runlog).action == "finished"
    return place, read_history(runlog.reload()).committed_step


def spec_in(place: Place, **fields) -> RunSpec:
    common = {"run_id": "mine", "recipe": "mine:build", "steps": 8, "threads": 1}
    common |= {"store": {"url": str(place.folder / "store")}, "continuity": {"rehearsal": "off"}}
    return RunSpec.parse(common | fields)


def build_of(text: str):
    """`build` of a module `mine` with this text."""
    module = types.ModuleType("mine")
    exec(compile(text, "mine.py", "exec"), vars(module))
    return module.build


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("# ", "# ", ()),
        ("WEIGHT * model", "WEIGHT * 2 * model", ("mine.loss",)),
        ("nn.Linear(4, 1)", "nn.Linear(4, 1, bias=False)", ("mine.build",)),
        ("def loss", "# A comment.\ndef loss", ()),
        # Global values may be the machine's, so the attempt judges them by what they do.
        ("WEIGHT = 1.0", "WEIGHT = 2.0", ()),
        # The checkpoint knows two functions of this name; from `build` without a call only one is found.
        ("x + 1", "x + 2", ("mine.<lambda>",)),
        ("def loss(", "def other(config): ...\n\ndef loss(", ()),
    ],
)
def test_a_changed_function_is_found_without_building_anything(trained, before, after, changed):
    spec = spec_in(trained[0])
    runlog = open_run(spec, clock=SystemClock())
    build = build_of(RECIPE.replace(before, after))
    if not changed:
        refuse_changed_code(runlog, spec, build)
        return
    with pytest.raises(CodeChangedError) as refused:
        refuse_changed_code(runlog, spec, build)
    assert refused.value.names == changed


@pytest.mark.matrix
def test_a_goal_in_epochs_is_the_same_goal_in_steps(trained):
    place, _ = trained  # Four steps are an epoch, and the run has a goal of 8.
    given = ("--run-id", "mine", "--store", str(place.folder / "store"))
    outcome = place.run("run", "mine:build", *given, "--epochs", "3")  # A slow machine shows the progress, too.
    assert (outcome.code, "steps was 8, now 12" in outcome.err) == (2, True)
    message = place.refused("run", "mine:build", *given, "--epochs", "3", "--steps", "12")
    assert "--epochs: it cannot be used together with --steps" in message


@pytest.mark.matrix
@pytest.mark.parametrize("fields", [{"continuity": {"accept": ["setup.code"]}}, {"config": {"lr": 0.2}}])
def test_an_accepted_change_and_one_with_another_config_are_left_to_the_attempt(trained, fields):
    runlog = open_run(spec_in(trained[0]), clock=SystemClock())
    refuse_changed_code(runlog, spec_in(trained[0], **fields), build_of(RECIPE.replace("model(plus", "2 * model(plus")))


@pytest.mark.matrix
def test_code_that_changed_is_refused_by_the_command_with_both_ways_on(trained):
    place, step = trained
    place.write("mine.py", RECIPE.replace("model(plus", "2 * model(plus"))
    given = ("--run-id", "mine", "--steps", "8", "--store", str(place.folder / "store"))
    message = place.refused("run", "mine:build", *given)
    assert f"run mine: the code has changed since the checkpoint at step {step}: mine.loss." in message
    assert "Fix: undo the change, or pass --accept setup.code to resume with the changed code." in message


PROGRAM = """
import torch, segue
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def loss_of(x):
    return model(x).square().mean()

with segue.session() as run:
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(8):
        loss = loss_of(torch.randn(8, 4))
        loss.backward()
        optimizer.step()
        run.report(loss=loss)
"""


@pytest.mark.matrix
def test_a_program_that_changed_is_refused_before_anything_starts(place, monkeypatch):
    place.write("train.py", PROGRAM)
    monkeypatch.chdir(place.folder)
    store = str(place.folder / "store")
    program = {"command": ["python", "train.py"]}
    spec = RunSpec.parse({"run_id": "own", "program": program, "steps": 8, "store": {"url": store}}, source="a test")
    assert run_here(spec, open_run(spec, clock=SystemClock())).action == "finished"
    place.write("train.py", PROGRAM.replace("square", "abs"))
    message = place.refused("run", "--run-id", "own", "--steps", "8", "--store", store, "--", "python", "train.py")
    assert "run own: the code has changed since the checkpoint at step 8: train.py: loss_of." in message
    assert "Fix: undo the change, or pass --accept setup.code to resume with the changed code." in message


@pytest.mark.matrix
def test_only_a_part_of_the_setup_can_be_accepted(place):
    message = place.refused("run", TINY, "--steps", "5", "--accept", "setup.code", "--accept", "code")
    assert "continuity.accept.1: " in message
    assert "'setup.code'" in message


COMMAND = """
import signal, typer
from segue.cli.interrupts import ends_cleanly
signal.signal(signal.SIGINT, signal.default_int_handler)  # A test runner in the background ignores it.
app = typer.Typer()
@app.command()
def main() -> None:
    with ends_cleanly(hint="Run the same command with --run-id mine to resume the run."):
        try:
            signal.raise_signal({signum})
            signal.pause()
        finally:
            print("ended what it had started")
app()
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_end_a_command_alike_and_show_how_to_resume(signum, code):
    command = [sys.executable, "-c", COMMAND.format(signum=int(signum))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, "ended what it had started\n"), ended.stderr
    assert ended.stderr == "Run the same command with --run-id mine to resume the run.\n"


@pytest.mark.matrix
def test_a_server_that_does_not_answer_leaves_no_run_in_the_store(place, closed_port):
    place.set("PREFECT_API_URL", f"http://127.0.0.1:{closed_port}/api")
    outcome = place.run("run", TINY, "--steps", "5", "--run-id", "tiny")
    sentence = f"the Prefect server at http://127.0.0.1:{closed_port}/api does not answer (ConnectError). Fix: start"
    assert sentence in refusal(outcome)
    assert [path.name for path in (place.folder / ".segue" / "store").iterdir()] == [".segue-store"]


@pytest.fixture
def answering():
    """Starts servers that answer every request with one status, or all but that for their health; gives addresses."""
    with ExitStack() as servers:

        def start(status: int, *, healthy: bool = False) -> str:
            class Handler(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    self.rfile.read(int(self.headers.get("Content-Length", 0)))
                    self.send_response(200 if healthy and self.path == "/api/health" else status)
                    self.end_headers()

                do_POST = do_GET

                def log_message(self, *args: object) -> None:
                    return

            server = servers.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            servers.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            return f"http://127.0.0.1:{server.server_port}/api"

        yield start


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "refuses access (HTTP 401). Fix: set PREFECT_API_KEY or PREFECT_API_AUTH_STRING"),
        (404, "has no Prefect API there (HTTP 404). Fix: correct PREFECT_API_URL"),
        (422, "refused the request (HTTP 422). Fix: use a server of the same version"),
        (503, "does not answer (PrefectHTTPStatusError). Fix: start the Prefect server"),
    ],
)
def test_a_server_that_refuses_is_named_at_once_with_its_own_fix(answering, status, said):
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from segue.deployments.follow import require_server

    url = answering(status)
    with temporary_settings({PREFECT_API_URL: url}), pytest.raises(OrchestratorError) as raised:
        require_server()
    assert f"the Prefect server at {url} {said}" in str(raised.value)


@pytest.mark.matrix
def test_detach_without_a_lasting_server_is_refused_before_anything_starts(place):
    message = place.refused("run", TINY, "--steps", "5", "--detach")
    assert "--detach needs a Prefect server that outlives this command. Fix: set PREFECT_API_URL, " in message
