"""The watchers of AWS, GCE and Azure, against their services on loopback."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from segue.clock import SystemClock
from segue.errors import MetadataServiceError
from segue.notices.aws import AwsWatcher
from segue.notices.azure import AzureWatcher
from segue.notices.board import NoticeBoard
from segue.notices.gce import GceWatcher
from segue.testing.clock import FakeClock
from segue.testing.metadata import FakeAws, FakeAzure, FakeGce

TOKEN = "PUT /latest/api/token"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def board(clock):
    return NoticeBoard(clock)


@pytest.fixture
def aws(clock):
    with FakeAws(clock) as service:
        yield service


@pytest.fixture
def azure(clock):
    with FakeAzure(clock) as service:
        yield service


def test_aws_without_a_notice_leaves_none(aws, clock, board):
    watcher = AwsWatcher(clock, aws.environment)
    for _ in range(3):
        watcher.poll(board)
    assert (board.read(), board.take_hints()) == (None, [])
    assert aws.requests.count(TOKEN) == 1


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_an_interruption_by_aws_is_one_notice_with_the_time_that_aws_states(aws, clock, board, action):
    watcher = AwsWatcher(clock, aws.environment)
    aws.interrupt(clock.now() + timedelta(seconds=120), action=action)
    watcher.poll(board)
    clock.advance(5)
    watcher.poll(board)
    assert board.nearest() == ("aws", 115)
    assert board.read().grace_seconds == 120


def test_aws_may_state_another_time_later(aws, clock, board):
    watcher = AwsWatcher(clock, aws.environment)
    aws.interrupt(clock.now() + timedelta(seconds=120))
    watcher.poll(board)
    aws.interrupt(clock.now() + timedelta(seconds=240))
    watcher.poll(board)
    assert board.seconds_left() == 240


def test_a_rebalance_recommendation_is_one_hint_for_each_time_it_is_made(aws, clock, board):
    watcher = AwsWatcher(clock, aws.environment)
    hints = []
    for is_new in (True, False, True):
        if is_new:
            clock.advance(60)
            aws.rebalance()
        watcher.poll(board)
        hints.append([hint.kind for hint in board.take_hints()])
    assert hints == [["rebalance"], [], ["rebalance"]]
    assert board.read() is None


def test_a_token_of_aws_that_is_refused_or_old_is_replaced(aws, clock, board):
    watcher = AwsWatcher(clock, aws.environment)
    watcher.poll(board)
    aws.expire_tokens()
    aws.interrupt(clock.now() + timedelta(hours=12))
    watcher.poll(board)
    assert board.read().kind == "aws"
    assert aws.requests.count(TOKEN) == 2
    clock.advance(3 * 3600 + 1)  # Half of its life: it is replaced before AWS refuses it.
    watcher.poll(board)
    assert aws.requests.count(TOKEN) == 3


def test_aws_is_not_asked_where_its_own_variable_disables_it(aws, clock):
    disabled = aws.environment | {"AWS_EC2_METADATA_DISABLED": "true"}
    assert not AwsWatcher(clock, disabled).is_here(timeout_seconds=1)
    assert aws.requests == []


def test_a_preemption_by_gce_ends_the_long_poll_at_once(board):
    with FakeGce() as gce:
        watcher = GceWatcher(SystemClock(), gce.environment)
        watcher.poll(board)
        assert board.read() is None
        thread = threading.Thread(target=watcher.poll, args=(board,))
        thread.start()
        while len(gce.requests) < 2:
            assert thread.is_alive()
        gce.preempt()
        thread.join(10)
        assert not thread.is_alive()
    assert board.nearest() == ("gce", 30)


def test_a_preemption_between_two_polls_of_gce_is_answered_at_once_and_counted_once(clock, board):
    with FakeGce() as gce:
        watcher = GceWatcher(clock, gce.environment)
        watcher.poll(board)
        gce.preempt()
        watcher.poll(board)
        assert board.nearest() == ("gce", 30)


def test_an_eviction_by_azure_is_a_notice_with_the_time_that_azure_states(azure, clock, board):
    watcher = AzureWatcher(clock, azure.environment)
    watcher.poll(board)
    assert board.read() is None
    azure.schedule(not_before=clock.now() + timedelta(seconds=45))
    watcher.poll(board)
    clock.advance(5)
    watcher.poll(board)
    assert board.nearest() == ("azure", 40)
    assert {request.partition(" ")[0] for request in azure.requests} == {"GET"}


@pytest.mark.parametrize(
    ("kind", "resources"),
    [("Preempt", ("another-vm",)), ("Reboot", None), ("Freeze", None), ("Redeploy", None)],
)
def test_events_of_other_machines_and_of_other_kinds_are_no_notices(azure, clock, board, kind, resources):
    azure.schedule(kind, not_before=clock.now(), resources=resources)
    AzureWatcher(clock, azure.environment).poll(board)
    assert board.read() is None


@pytest.mark.parametrize("resources", [("another-vm", "SPOT-VM-0"), None])
def test_a_termination_of_this_machine_is_a_notice_however_its_name_is_written(azure, clock, board, resources):
    azure.schedule("Terminate", not_before=clock.now() + timedelta(minutes=5), resources=resources)
    AzureWatcher(clock, azure.environment).poll(board)
    assert board.nearest() == ("azure", 300)


def test_an_event_that_has_begun_leaves_30_s_and_never_more_than_was_stated(azure, clock, board):
    watcher = AzureWatcher(clock, azure.environment)
    azure.schedule()
    watcher.poll(board)
    assert board.seconds_left() == 30
    event = azure.schedule(not_before=clock.now() + timedelta(seconds=20))
    watcher.poll(board)
    assert board.seconds_left() == 20
    clock.advance(15)
    azure.schedule(event_id=event)
    watcher.poll(board)
    assert board.seconds_left() == 5


def test_an_event_that_azure_no_longer_lists_is_withdrawn(azure, clock, board):
    watcher = AzureWatcher(clock, azure.environment)
    near = azure.schedule(not_before=clock.now() + timedelta(seconds=30))
    far = azure.schedule(not_before=clock.now() + timedelta(seconds=90))
    watcher.poll(board)
    assert board.seconds_left() == 30
    azure.withdraw(near)
    watcher.poll(board)
    assert board.seconds_left() == 90
    azure.withdraw(far)
    watcher.poll(board)
    assert board.read() is None


def test_the_watcher_of_azure_withdraws_no_notice_but_its_own(azure, clock, board):
    watcher = AzureWatcher(clock, azure.environment)
    board.leave("sigterm", grace_seconds=25)
    event = azure.schedule()
    watcher.poll(board)
    azure.withdraw(event)
    watcher.poll(board)
    assert board.read().kind == "sigterm"


@pytest.mark.parametrize("watcher", [AwsWatcher, GceWatcher, AzureWatcher])
def test_a_service_that_is_gone_is_an_error_with_its_address(watcher, board):
    with FakeAws() as service:
        host = service.host
    environment = {
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{host}",
        "GCE_METADATA_HOST": host,
        "AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://{host}/",
    }
    with pytest.raises(MetadataServiceError, match=rf"at http://{host}/\w") as refused:
        watcher(SystemClock(), environment).poll(board)
    assert refused.value.url.startswith(f"http://{host}/")
    assert board.read() is None


@pytest.mark.parametrize(
    ("service", "watcher", "zone"),
    [
        (FakeAws, AwsWatcher, "eu-west-1b"),
        (FakeGce, GceWatcher, "europe-west4-a"),
        (FakeAzure, AzureWatcher, "westeurope-2"),
    ],
)
def test_each_cloud_names_the_zone_of_the_machine(service, watcher, zone):
    with service() as running:
        assert watcher(SystemClock(), running.environment).zone() == zone
