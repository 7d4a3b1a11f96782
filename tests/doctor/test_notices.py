"""The doctor's checks of notices fail where a notice would not arrive."""

from __future__ import annotations

import threading

import pytest

from segue.doctor import notices
from segue.doctor.subject import Subject
from segue.testing.metadata import FAKES, NO_SERVICE, FakeAws, Reply
from tests.doctor.showing import bad, good, makes_fail

SILENT = NO_SERVICE | {"AWS_EC2_METADATA_DISABLED": "false"}
"""Variables with which each service is asked, and none answers."""


class HopLimitOne(FakeAws):
    """AWS's service as a container sees it behind a hop limit of 1: the answer with a token is lost on the way."""

    def __init__(self):
        self.is_over = threading.Event()
        super().__init__()

    def _answer(self, request):
        if request.method == "PUT":
            self.is_over.wait(60)
        return super()._answer(request) if request.method != "PUT" else Reply(404)

    def close(self):
        self.is_over.set()
        super().close()


@pytest.fixture
def subject(make_spec):
    def make(environ=SILENT, **fields):
        return Subject(spec=make_spec(**fields), environ=environ)

    return make


@makes_fail("notices.metadata")
def test_a_metadata_service_that_is_to_be_watched_and_does_not_answer_is_found(subject):
    bad(
        "notices.metadata",
        notices.metadata(subject(notices=["aws"])),
        "fail",
        "notices contains aws",
        "set the hop limit of this service to 2",
    )


@makes_fail("notices.metadata")
def test_a_machine_of_a_cloud_whose_service_does_not_answer_is_found(subject, tmp_path):
    (tmp_path / "sys_vendor").write_text("Amazon EC2\n")
    bad("notices.metadata", notices.metadata(subject(), dmi=tmp_path), "fail", "this machine is on aws", "notices = []")


@makes_fail("notices.metadata")
def test_a_variable_that_keeps_aws_service_from_being_asked_is_named(subject, tmp_path):
    (tmp_path / "sys_vendor").write_text("Amazon EC2\n")
    for wanted in (["aws"], None):
        result = notices.metadata(subject(NO_SERVICE, notices=wanted), dmi=tmp_path)
        bad("notices.metadata", result, "fail", "AWS_EC2_METADATA_DISABLED is set", "unset")
    assert "is set" in notices.hop_limit(subject(NO_SERVICE)).reason


@pytest.mark.parametrize("platform", FAKES)
def test_a_service_that_answers_passes(subject, platform, tmp_path):
    with FAKES[platform]() as service:
        good(notices.metadata(subject(service.environment, notices=[platform])))
        found = notices.metadata(subject(service.environment), dmi=tmp_path)
    good(found)
    assert platform in found.reason


def test_without_a_cloud_signals_are_the_notices(subject, tmp_path):
    good(notices.metadata(subject(), dmi=tmp_path))
    assert notices.metadata(subject(notices=[])).outcome == "skipped"


@pytest.mark.parametrize(
    ("vendor", "tag", "platform"),
    [
        ("Google", "", "gce"),
        ("Microsoft Corporation", "7783-7084-3265-9085-8269-3286-77", "azure"),
        ("Microsoft Corporation", "None", None),
        ("LENOVO", "", None),
    ],
)
def test_the_firmware_names_the_cloud(tmp_path, vendor, tag, platform):
    (tmp_path / "sys_vendor").write_text(f"{vendor}\n")
    (tmp_path / "chassis_asset_tag").write_text(f"{tag}\n")
    assert notices.vendor_platform(tmp_path) == platform


@makes_fail("notices.hop-limit")
def test_tokens_that_do_not_reach_a_container_are_found(subject):
    with FakeAws() as service:
        good(notices.hop_limit(subject(service.environment)))
    with HopLimitOne() as service:
        result = notices.hop_limit(subject(service.environment), answer_seconds=0.3)
    bad("notices.hop-limit", result, "fail", "its tokens do not arrive", "--http-put-response-hop-limit 2")


def test_where_sigterm_is_the_notice_no_metadata_service_need_be_reached(subject, tmp_path):
    (tmp_path / "sys_vendor").write_text("Amazon EC2\n")
    with HopLimitOne() as service:
        examined = subject(service.environment, notices=[])
        found = [notices.metadata(examined, dmi=tmp_path), notices.hop_limit(examined, answer_seconds=0.3)]
    assert {(result.outcome, "notices = []" in result.reason) for result in found} == {("skipped", True)}


@pytest.mark.parametrize("platform", ["gce", "azure"])
def test_the_service_of_another_cloud_has_no_hop_limit(subject, platform):
    with FAKES[platform]() as service:
        environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{service.host}"}
        assert notices.hop_limit(subject(environ)).outcome == "skipped"
    assert notices.hop_limit(subject()).outcome == "skipped"


@makes_fail("notices.file")
def test_a_notice_file_that_exists_or_cannot_appear_is_found(subject, tmp_path):
    path = tmp_path / "notice"
    examined = subject(liveness={"notice_file": str(path)})
    good(notices.notice_file(examined))
    path.touch()
    bad("notices.file", notices.notice_file(examined), "warn", "every attempt", "remove the file")
    examined = subject(liveness={"notice_file": str(tmp_path / "none" / "notice")})
    bad("notices.file", notices.notice_file(examined), "fail", "does not exist or cannot be read")
