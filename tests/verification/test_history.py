"""The history of verifications: recorded once for each scheduled time, green since the last one that did not pass."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from segue.runlog import keys
from segue.runlog.open import known_runs
from segue.stores import open_store
from segue.testing.faulty_store import FaultyStore
from segue.verification.verification_page import VERIFY_FAILED, VERIFY_PASSED, event_of, headline, verifications_page
from segue.verification.verifications import VerificationsLog, green
from tests.verification.drills import SLOT, red, sound

WEEK = timedelta(days=7)
NOW = SLOT + timedelta(days=21, hours=5)


@pytest.fixture
def store(tmp_path):
    opened = open_store(tmp_path / "store")
    opened.check()
    return opened


def test_each_scheduled_time_is_recorded_once_in_order_of_time(store):
    log = VerificationsLog(store, "nightly")
    assert log.read() == ()
    log.add(sound(slot=SLOT + WEEK))
    log.add(sound())
    history = log.add(sound())
    assert [one.slot for one in history] == [SLOT, SLOT + WEEK]
    assert VerificationsLog(store, "nightly").read() == history
    assert VerificationsLog(store, "hourly").read() == ()
    assert list(known_runs(store.url)) == [], "its folder is no run"
    assert not keys.is_run_folder(keys.verifications_folder("nightly"))


def test_a_verification_that_went_on_replaces_what_it_had_recorded(store):
    log = VerificationsLog(store, "nightly")
    log.add(red())
    assert log.add(sound()) == (sound(),)


def test_writers_at_the_same_time_lose_no_record(store):
    def record(number: int) -> None:
        VerificationsLog(store, "nightly").add(sound(slot=SLOT + number * WEEK))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(record, range(8)))
    assert len(VerificationsLog(store, "nightly").read()) == 8


def test_a_record_whose_answer_was_lost_is_there_once(store):
    lost = iter([True])
    faulty = FaultyStore(store, fails=lambda name, key: name == "put_if_absent" and next(lost, False), after=True)
    log = VerificationsLog(faulty, "nightly")
    log.add(sound())
    log.add(sound())
    assert len(store.list_objects(f"{keys.verifications_folder('nightly')}/log/")) == 1


def test_green_counts_from_the_first_that_passed_after_the_last_that_did_not():
    history = [sound(slot=SLOT - WEEK), red(), sound(slot=SLOT + WEEK), sound(slot=SLOT + 2 * WEEK)]
    found = green(history, now=NOW)
    assert (found.since, found.count, found.days) == (SLOT + WEEK, 2, 14)
    assert found.in_words == "green for 14 days (2 verifications since 2026-11-15 04:00 UTC)"
    assert green([*history, red(slot=NOW)], now=NOW) is None
    assert green([], now=NOW) is None
    assert green([sound(slot=NOW)], now=NOW).in_words.startswith("green for 0 days (1 verification since ")


def test_the_page_begins_with_the_verdict_and_the_days_and_lists_the_last_twenty():
    history = [sound(slot=SLOT + number * WEEK) for number in range(25)]
    now = history[-1].slot + timedelta(hours=1)
    lines = verifications_page(history, store="s3://bucket/models", now=now).splitlines()
    assert lines[0].startswith("**nightly** passed, exact: after 1 kill the final state is identical")
    assert lines[0].endswith("; green for 168 days (25 verifications since 2026-11-08 04:00 UTC)")
    rows = [line for line in lines if line.startswith(("| 2026", "| 2027"))]
    assert len(rows) == 20
    assert rows[0].startswith("| 2027-04-25 04:00 UTC | passed | exact | yes | 1 | 0 | 0 | ")


def test_a_red_page_has_the_finding_with_its_fix_and_names_the_evidence():
    history = [sound(slot=SLOT - WEEK), red()]
    page = verifications_page(history, store="s3://bucket/models", now=NOW)
    assert page.splitlines()[0] == (
        "**nightly** not continuous: the final states differ in optimizer; "
        "the last one that passed was at 2026-11-01 04:00 UTC"
    )
    assert "* optimizer differs at the end from that of the undisturbed run. Fix: let optimizer restore" in page
    assert f"`{history[-1].undisturbed}` and `{history[-1].disturbed}`" in page
    assert headline([red()], now=NOW).endswith("; none has passed")


def test_the_event_says_what_to_do_and_is_the_same_when_it_is_derived_again():
    passed, failed = event_of([sound()], store="s", now=NOW), event_of([sound(), red(slot=NOW)], store="s", now=NOW)
    assert (passed.name, failed.name) == (VERIFY_PASSED, VERIFY_FAILED)
    assert (failed.facts["component"], failed.facts["outcome"], failed.facts["run"]) == (
        "optimizer",
        "not continuous",
        "nightly",
    )
    assert "Fix: let optimizer" in failed.sentence
    later = event_of([sound(), red(slot=NOW)], store="s", now=NOW + WEEK)
    assert later.key == failed.key
    assert later.key != event_of([red(slot=datetime(2027, 1, 1, tzinfo=UTC))], store="s", now=NOW).key
