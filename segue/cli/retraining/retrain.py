"""`segue retrain`: deploy a scheduled retraining, start or backfill its slots, and show their outcomes."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.interrupts import ends_cleanly
from segue.cli.options import Json, require_prefect
from segue.cli.server import require_lasting_server, server
from segue.clock import SystemClock
from segue.errors import OptionError
from segue.reports.console import console, errors, progress, show_json
from segue.reports.tables import rows_table
from segue.retraining.history import SlotState
from segue.retraining.model_record import Trigger
from segue.retraining.slots import run_id_of, slot_at, store_of
from segue.retraining.spec import RetrainSpec
from segue.retraining.versions.serving import model_or_empty

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

app = typer.Typer(
    name="retrain",
    help="Scheduled retraining: deploy it, start or backfill its slots, show the outcome of each slot.",
    no_args_is_help=True,
)

File = Annotated[Path, typer.Argument(help="Specification of the retraining, in TOML.")]
DEFAULT = Path("retrain.toml")
_NEXT = timedelta(days=400)
_SHOWN_NEXT = 3


@app.command()
def deploy(
    file: File = DEFAULT,
    paused: Annotated[bool, typer.Option("--paused", help="Create the schedules paused.")] = False,
) -> None:
    """Create or update the deployments of a retraining, with their schedules, on the pool `parents`.

    The deployment `retrain/NAME` runs the slots. If the file has a [trigger] table, the deployment `watch/NAME` checks
    for new or drifted data and then starts further slots.

    Flow runs start in the current folder, so all machines of the pool `parents` must have this folder. Exit code 0.
    """
    spec = _read(file)
    require_prefect("retrain")
    from segue.deployments.follow import open_client, require_server
    from segue.deployments.retrain_deployments import deploy as deploy_here
    from segue.prefect.slots.slot_ticks import ticks, ticks_of_the_evening_before

    require_lasting_server("segue retrain deploy")
    require_server()
    with open_client() as client:
        deploy_here(client, spec, file=str(file), working_dir=Path.cwd(), active=not paused)
    now = SystemClock().now()
    following = ticks(spec, since=now, until=now + _NEXT)[:_SHOWN_NEXT]
    when = ", ".join(f"{tick.astimezone(spec.zone):%Y-%m-%d %H:%M %Z}" for tick in following) or "by hand only"
    console.print(f"deployed retrain/{spec.name}; next slots: {when}", markup=False, soft_wrap=True)
    for tick in ticks_of_the_evening_before(spec, since=now, until=now + _NEXT)[:_SHOWN_NEXT]:
        at = f"{tick.astimezone(spec.zone):%Y-%m-%d %H:%M}"
        why = f"the clock in {spec.timezone} skips the hour after midnight"
        note = f"note: a slot is on the evening before, at {at}, because {why}; slots from 1:00 on do not move"
        console.print(note, markup=False, soft_wrap=True)
    if spec.trigger is not None:
        causes = [name for name in ("arrival", "drift") if getattr(spec.trigger, name) is not None]
        every = f"every {spec.trigger.every_minutes:g} minutes" if not paused else "when it is not paused"
        text = f"deployed watch/{spec.name}; looks for {' and '.join(causes)} {every}"
        console.print(text, markup=False, soft_wrap=True)


@app.command()
def start(
    file: File = DEFAULT,
    slot: Annotated[
        str | None,
        typer.Option(help="Time of the slot, as an ISO time; a time without a zone is in the schedule's zone."),
    ] = None,
) -> None:
    """Start one slot, by default for the current time, and follow it to its end; a finished slot is not run again.

    Exit code 0: the slot trained a candidate (which may wait for a decision), or was skipped. 1: the slot failed. 2:
    the slot could not be started with these options.
    """
    spec = _read(file)
    chosen = moment(slot, spec, option="--slot") if slot is not None else slot_at(SystemClock().now())
    _run_all(spec, file, [chosen])


@app.command()
def backfill(
    file: File = DEFAULT,
    since: Annotated[str, typer.Option("--from", help="First time, as an ISO date or time.")] = "",
    until: Annotated[str, typer.Option("--to", help="Last time, inclusive, as an ISO date or time.")] = "",
) -> None:
    """Run the slots of the schedule between two times, one after the other; finished slots are not run again.

    Exit code 0: every slot has trained a candidate, now or earlier. 1: at least one slot has no candidate.
    """
    spec = _read(file)
    require_prefect("retrain")
    from segue.prefect.slots.slot_ticks import require_cron, ticks

    require_cron(spec)
    first, last = (moment(text, spec, option=option) for text, option in ((since, "--from"), (until, "--to")))
    found = ticks(spec, since=first - timedelta(seconds=1), until=min(last, slot_at(SystemClock().now())))
    if not found:
        raise OptionError(f"--from, --to: the schedule {spec.schedule!r} has no past slot between these two times")
    _run_all(spec, file, list(found))


@app.command()
def slots(file: File = DEFAULT, as_json: Json = False) -> None:
    """Show the outcome of every slot of a retraining."""
    spec = RetrainSpec.from_toml(file)
    models = model_or_empty(store_of(spec), spec.name)
    states = models.slots.values()
    rows = [_row(spec, state, models.triggers.get(state.slot)) for state in states]
    if as_json:
        facts = [_named(row) | _facts(state) for row, state in zip(rows, states, strict=True)]
        show_json({"model": spec.name, "slots": facts})
    else:
        console.print(rows_table(rows) if rows else "no slot was started yet")


def _row(spec: RetrainSpec, state: SlotState, trigger: Trigger | None) -> dict[str, object]:
    return {
        "slot": f"{state.slot.astimezone(spec.zone):%Y-%m-%d %H:%M %Z}",
        "run": run_id_of(spec, state.slot),
        "begun by": trigger.why if trigger is not None else None,
        "outcome": state.outcome_in_words,
        "version": state.version,
        "why": _why(spec, state),
    }


def _why(spec: RetrainSpec, state: SlotState) -> str | None:
    if state.end is not None:
        return state.end.why
    if not state.is_waiting or state.decide_by is None:
        return None
    return f"until {state.decide_by.astimezone(spec.zone):%Y-%m-%d %H:%M %Z}"


def _named(row: dict[str, object]) -> dict[str, object]:
    return {name.replace(" ", "_"): value for name, value in row.items()}


def _facts(state: SlotState) -> dict[str, object]:
    """Return the fields of a slot whose format in JSON output differs from the table."""
    outcome = state.end.outcome if state.end is not None else None
    return {"slot": state.slot.isoformat(), "outcome": outcome}


def _run_all(spec: RetrainSpec, file: Path, wanted: list[datetime]) -> None:
    require_prefect("retrain")
    from segue.deployments.follow import open_client

    failed = 0
    with (
        ends_cleanly(hint="If a Prefect server still runs, the slot continues there. If not, start the slot again."),
        server() as is_local,
        open_client() as client,
    ):
        for slot in wanted:
            failed += not _run(client, spec, file, slot, is_local=is_local)
    if failed:
        raise typer.Exit(1)


def _run(client: SyncPrefectClient, spec: RetrainSpec, file: Path, slot: datetime, *, is_local: bool) -> bool:
    from segue.deployments.retrain_deployments import deploy, start_slot, wait_for
    from segue.prefect.state_words import in_words

    if is_local:
        deploy(client, spec, file=str(file), working_dir=Path.cwd(), active=False)
    name = run_id_of(spec, slot)
    with progress(f"{name}: the slot runs"):
        state = wait_for(client, start_slot(client, spec, slot))
    waits = f"it waits for a decision: `segue models approve {spec.name}`, or reject" if state.is_paused() else None
    console.print(f"{name}: {waits or state.message or in_words(state)}", markup=False, soft_wrap=True)
    return state.is_completed() or state.is_paused()


def _read(file: Path) -> RetrainSpec:
    """Read the specification. If the specification has a program, check that slots can train and publish the
    program."""
    spec = RetrainSpec.from_toml(file)
    if "program" in spec.run:
        from segue.retraining.program_check import require_publishable  # It takes seconds to import.

        for note in require_publishable(spec, folder=Path.cwd(), source=str(file)):
            errors.print(f"note: {note}", markup=False)
    return spec


def moment(text: str, spec: RetrainSpec, *, option: str) -> datetime:
    """Return the slot that an option names. A time without a zone is in the schedule's zone.

    Raises:
        SpecError: the text is not an ISO time.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"{option}: {text!r} is not an ISO time, e.g. 2013-07-01 or 2013-07-01T06:00") from None
    return slot_at(found, spec.zone)
