"""Which provider's machine this is: found by the answers alone, and never another one than it is."""

from __future__ import annotations

import logging

import pytest

from segue.clock import SystemClock
from segue.errors import MetadataServiceError
from segue.notices.board import NoticeBoard
from segue.notices.platform import FIND_SECONDS, cloud_watcher, find_platform
from segue.testing.metadata import FAKES, NO_SERVICE
from tests.support.hostile_service import ANSWERS, answering

ADDRESSES = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "GCE_METADATA_HOST", "AZURE_POD_IDENTITY_AUTHORITY_HOST")


def find(environment, **limits):
    found = find_platform(SystemClock(), environ=environment, **limits)
    return None if found is None else found.name


@pytest.mark.parametrize("name", FAKES)
def test_the_platform_is_found_where_its_service_answers_and_no_other(name):
    with FAKES[name]() as service:
        started = SystemClock().monotonic()
        assert find(service.environment, limit_seconds=30) == name  # A busy machine must not fail this test.
        assert SystemClock().monotonic() - started < 30
    assert FIND_SECONDS <= 1


@pytest.mark.parametrize("name", FAKES)
def test_a_service_at_the_address_that_all_three_share_is_taken_for_its_own_provider_only(name):
    with FAKES[name]() as service:
        everywhere = dict.fromkeys(ADDRESSES, f"http://{service.host}")
        everywhere |= {"GCE_METADATA_HOST": service.host}
        assert find(everywhere, limit_seconds=30) == name


def test_nothing_is_found_where_nothing_listens():
    assert find(NO_SERVICE | {"AWS_EC2_METADATA_DISABLED": "false"}) is None


@pytest.mark.parametrize("answer", ANSWERS)
def test_nothing_is_found_where_something_else_answers(answer):
    with answering(ANSWERS[answer]) as environment:
        assert find(environment, limit_seconds=5) is None


def test_a_service_that_never_answers_delays_the_search_by_its_limit_only():
    with answering(None) as environment:
        started = SystemClock().monotonic()
        assert find(environment, limit_seconds=0.3) is None
        assert SystemClock().monotonic() - started < 5


def test_where_two_services_answer_none_is_watched_and_the_log_shows_both(caplog):
    with FAKES["aws"]() as aws, FAKES["gce"]() as gce, caplog.at_level(logging.WARNING):
        both = aws.environment | {"GCE_METADATA_HOST": gce.host}
        assert find(both, limit_seconds=30) is None
    assert "services=aws,gce" in caplog.text


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("name", FAKES)
def test_an_answer_that_makes_no_sense_is_an_error_and_no_notice(name, answer, monkeypatch):
    board = NoticeBoard(SystemClock())
    with answering(ANSWERS[answer]) as environment:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        watcher = cloud_watcher(name, SystemClock())
        with pytest.raises(MetadataServiceError, match=r"could not be read: .+ Fix: "):
            watcher.poll(board)
    assert (board.read(), board.take_hints()) == (None, [])
