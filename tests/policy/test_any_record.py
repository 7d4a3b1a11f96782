"""Whatever numbers are in the records of a run, it is decided what happens next, and its page is shown."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from segue.errors import DamagedRecordError, SpecError
from segue.policy.decide import decide
from segue.records import Capacity, Heartbeat, Notice, SegmentPlan, SegmentReport, StopReason, VerdictKind
from segue.reports.cost_report import cost_report
from segue.reports.page import RunView, page
from segue.runlog.entries import DrillEntry, HandoverEntry, PricesEntry, SpendingEntry, StartEntry, body_of, parse
from segue.runlog.history import fold
from segue.runlog.log import Slot
from segue.spec import RunSpec
from segue.units import LEAST_SECONDS, MOST_MONEY, MOST_SECONDS
from tests.support.histories import START, Logbook, make_spec

NUMBERS = ["NaN", "Infinity", "-Infinity", -1, -1e300, 0, 5e-324, 1e-9, 1e9, 1e12, 1e18, 1e300, 10**30, 10**400]
MOMENTS = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "2026-01-01T00:00:00+14:00"]
MOMENTS += ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00", "2200-06-01T00:00:00Z"]
SPECS = {
    "no deadline": {},
    "a deadline": {"deadline_in": 86_400.0, "policy": {"step_seconds": 1.0}},
    "a deadline, nothing measured": {"deadline_in": 86_400.0},
    "a budget": {"deadline_in": 86_400.0, "budget": {"per_run": 5.0, "per_month": 20.0}},
    "prices": {"deadline_in": 86_400.0, "pools": {"prices": "file: prices.json"}},
    "two pools": {"deadline_in": 86_400.0, "pools": {"spot": [{"deployment": "s/a"}, {"deployment": "s/b"}]}},
    "a greedy policy": {"deadline_in": 86_400.0, "policy": {"name": "greedy"}},
}
FEW = ("no deadline", "a deadline", "a greedy policy")


def records_of(spec):
    """The records of a run with something of each kind that a decision depends on."""
    book = Logbook(spec)
    plan = book.decide().plan
    facts = {"segment": plan.segment, "attempt": plan.attempt}
    book.seconds = 50.0
    common = {"deployment": plan.deployment, **facts}
    book.write(StartEntry, number=1, outcome="slow", seconds=45.0, **common)
    book.write(StartEntry, number=2, outcome="claimed", seconds=5.0, **common)
    prices = {pool.deployment: 1.0 for pool in spec.pools.spot} | {spec.pools.on_demand: 3.0}
    book.write(PricesEntry, source=spec.pools.prices or "", prices=prices, taken_at=book.now)
    book.write(SpendingEntry, month="2026-01", others_cost=1.0, standby_cost=0.1, standby_month_cost=0.1)
    name = book.claim(plan)
    book.commit(name, 10)
    book.seconds = 400.0
    measured = {"to_step": 12, "train_steps": 9, "train_seconds": 300.0, "seconds": 350.0, "startup_seconds": 9.0}
    measured |= {"save_seconds": 1.0, "save_cost_seconds": 0.5, "lost_steps": 2, "peak_memory_bytes": 10**9}
    notice = Notice(kind="sigterm", received_at=book.now, grace_seconds=30.0)
    book.report(plan, StopReason.NOTICE, attempt_id=name, notice=notice, **measured)
    book.resume(VerdictKind.EXACT, commit=20)
    verdict = book.history.resumes[-1].verdict
    book.write(DrillEntry, checkpoint=book.history.checkpoints[-1].ref, verdict=verdict, seconds=3.0)
    book.attempt(StopReason.LOST, Capacity.ON_DEMAND, commit=30, **measured)
    waited = {"waited_seconds": 20.0, "held_seconds": 3.0}
    book.write(HandoverEntry, spare="s1", deployment=plan.deployment, reason="spot", numbers=waited, **facts)
    book.seconds += 50.0
    taken_over = book.plan(standby="s1")
    book.report(taken_over, StopReason.LOST, attempt_id=book.claim(taken_over), **measured)
    last = book.decide().plan
    if last is not None:
        book.claim(last)
    return [json.loads(body_of(slot.entry)) for slot in book.slots]


def places_in(data, path=()):
    """Every number and moment of a record, but those of the run spec, which a person writes, and of schemas."""
    found = []
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if key in ("spec", "schema_version", "environment"):
            continue
        if isinstance(value, (dict, list)):
            found += places_in(value, (*path, key))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append(((*path, key), NUMBERS))
        elif isinstance(value, str) and key.endswith("_at"):
            found.append(((*path, key), MOMENTS))
    return found


def put(data, path, value):
    """Put a value in a place; a figure that a record need not have may also be missing."""
    for key in path[:-1]:
        data = data[key]
    if path[-2:-1] in (("numbers",), ("prices",)) and value == NUMBERS[0]:
        del data[path[-1]]
    else:
        data[path[-1]] = value


def history_of(records):
    """As a reader has it: a record that cannot be read is none."""
    slots = []
    for number, record in enumerate(records):
        try:
            slots.append(Slot(number, parse(json.dumps(record).encode(), key="r/log/x")))
        except DamagedRecordError:
            continue
    return fold(slots, next_slot=len(records)), len(records) - len(slots)


@pytest.mark.parametrize(
    "fields",
    [pytest.param(fields, id=name, marks=() if name in FEW else pytest.mark.matrix) for name, fields in SPECS.items()],
)
def test_it_is_decided_what_happens_next(fields):
    spec, rolls = make_spec(**fields), random.Random(3)
    good = records_of(spec)
    damaged = 0
    for _ in range(100):
        records = json.loads(json.dumps(good))
        for _ in range(rolls.choice([1, 1, 2, 5])):
            record = rolls.choice(records[1:])
            path, values = rolls.choice(places_in(record))
            put(record, path, rolls.choice(values))
        history, lost = history_of(records)
        damaged += lost
        decided = decide(spec, history, now=START + timedelta(seconds=rolls.choice([500.0, 86_000.0, 1e6])))
        assert decided.reason
        assert all(map(math.isfinite, decided.numbers.values()))
        view = RunView(spec, history, cost_report(spec, history), START + timedelta(seconds=500.0))
        assert page(view)
    # A report whose seconds are wrong is still a report. Only what identifies a step or a slot is refused.
    assert damaged < 100


def test_the_report_of_the_finding():
    book = Logbook(make_spec(deadline_in=86_400.0, policy={"step_seconds": 1.0}))
    book.attempt(StopReason.LOST, commit=10, seconds=1e12, train_seconds=1e12, train_steps=9)
    book.attempt(StopReason.LOST, commit=20, seconds=math.inf)
    assert book.ask().action == "run"
    assert [report.seconds for report in book.history.reports] == [MOST_SECONDS] * 2


@pytest.mark.parametrize(
    ("given", "read"), [(math.nan, 0.0), (-5.0, 0.0), (math.inf, MOST_SECONDS), (1e12, MOST_SECONDS), (7.5, 7.5)]
)
def test_seconds_are_within_bounds(given, read):
    facts = {"segment": 0, "attempt": 1, "attempt_id": None, "capacity": "spot", "stop_reason": "lost"}
    written = SegmentReport.model_construct(**facts, from_step=0, to_step=0, seconds=given, train_seconds=given)
    assert SegmentReport.model_validate_json(written.model_dump_json(warnings=False)).seconds == read
    plan = SegmentPlan(segment=0, attempt=1, capacity="spot", deployment="a/b", max_seconds=given, delay_seconds=given)
    assert (plan.max_seconds, plan.delay_seconds) == (max(read, LEAST_SECONDS), read)


def test_a_hint_has_no_end_still():
    assert Notice(kind="rebalance", received_at=START, grace_seconds=math.inf).grace_seconds == math.inf
    assert Notice(kind="sigterm", received_at=START, grace_seconds=math.nan).grace_seconds == 0.0


def test_a_price_that_is_none_is_not_known_and_the_pool_keeps_its_own():
    prices = {"a/b": math.nan, "a/c": -1.0, "a/d": 0.0, "a/e": math.inf, "a/f": 0.5}
    entry = PricesEntry(entry_id="e", written_at=START, source="file: x", prices=prices, taken_at=START)
    assert entry.prices == {"a/e": MOST_MONEY, "a/f": 0.5}


def test_a_heartbeat_with_any_number_is_read_and_shown():
    spec = make_spec(deadline_in=86_400.0, policy={"step_seconds": 1.0}, budget={"per_run": 5.0})
    book = Logbook(spec)
    name = book.claim(book.decide().plan)
    good = Heartbeat(
        attempt_id=name, counter=1, phase="training", step=5, step_seconds=1.0, trainer_pid=1, beat_at=START
    )
    data = json.loads(good.model_dump_json()) | {"ends_in_seconds": 5.0, "peak_memory_bytes": 5, "memory_bytes": 5}
    for path, values in places_in(data):
        for value in values:
            try:
                beat = Heartbeat.model_validate_json(json.dumps(data | {path[0]: value}))
            except ValueError:  # A count that is no whole number: as for no heartbeat.
                assert isinstance(value, (str, float)) or path[0] == "trainer_pid"
                continue
            view = RunView(spec, book.history, cost_report(spec, book.history), book.now, beat=beat)
            assert page(view), (path, value)
    assert good.beat_at == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.matrix
def test_a_hand_over_that_lacks_a_figure_is_read():
    book = Logbook(make_spec(deadline_in=86_400.0, policy={"step_seconds": 1.0}))
    plan = book.decide().plan
    facts = {"segment": plan.segment, "attempt": plan.attempt, "deployment": plan.deployment, "reason": "spot"}
    book.write(HandoverEntry, spare="s1", numbers={"waited_seconds": 20.0}, **facts)
    taken_over = book.plan(standby="s1")
    book.report(taken_over, StopReason.LOST, attempt_id=book.claim(taken_over), seconds=60.0)
    assert book.ask().action == "run"


def durations(model, path=()):
    """The fields of a spec that are a number of seconds, by their path."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from durations(kind, (*path, name))
        if name.endswith("_seconds") and not {int, float}.isdisjoint(kinds):
            yield (*path, name)


DURATIONS = sorted(path for path in set(durations(RunSpec)) if path[0] not in ("slurm", "ray", "data", "program"))


@pytest.mark.parametrize("path", DURATIONS, ids=".".join)
def test_whatever_duration_a_spec_has_it_is_refused_or_it_is_decided_what_happens_next(path):
    for value in (5e-324, 1e18, 1e300):
        fields = {"deadline_in": 86_400.0, "policy": {"name": "greedy", "step_seconds": 1.0}}
        node = fields
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = value
        try:
            book = Logbook(make_spec(**fields))
        except SpecError:
            continue
        book.attempt(StopReason.LOST, commit=10, to_step=12, train_steps=9, train_seconds=9.0, startup_seconds=3.0)
        assert all(math.isfinite(number) for number in book.ask().numbers.values())
        book.seconds += 50
        book.ask()


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["spot_price", "on_demand_price"])
@pytest.mark.parametrize("value", [5e-324, 1e300])
@pytest.mark.parametrize("handover", [False, True])
def test_whatever_a_machine_costs_it_is_refused_or_it_is_decided_what_happens_next(name, value, handover):
    policy = {"name": "plan", "step_seconds": 1.0, "handover": handover}
    try:
        book = Logbook(make_spec(deadline_in=86_400.0, policy=policy, pools={name: value}))
    except SpecError:
        return
    book.attempt(StopReason.LOST, commit=10, to_step=12, train_steps=9, train_seconds=9.0, startup_seconds=3.0)
    assert all(math.isfinite(number) for number in book.ask().numbers.values())
