"""Names that MLflow does not take become similar ones that it takes, and no two become one."""

from __future__ import annotations

import posixpath
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.integrations.mlflow import SentNames, allowed_name

_CHARACTERS = re.compile(r"[/\w.\- ]+")
"""The rule of MLflow's `validate_param_and_metric_name`, without the colon, which not every server takes."""


def is_allowed(name: str) -> bool:
    is_path = posixpath.normpath(name) == name and name != "." and not name.startswith(("..", "/"))
    return is_path and _CHARACTERS.fullmatch(name) is not None and len(name) <= 250


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("loss", "loss"),
        ("val/loss top-1.b", "val/loss top-1.b"),
        ("acc@5", "acc_at_5"),
        ("timing(s)/gen", "timing_s_/gen"),
        ("iou,0.5", "iou_0.5"),
        ("a:b", "a_b"),
        ("/abs", "abs"),
        ("../up", "up"),
        ("a//b/", "a/b"),
        ("loss\n", "loss_"),
        ("..", "_"),
        ("..a", "_..a"),
        ("", "_"),
        ("data.s3://lake/2013-01.parquet", "data.s3_/lake/2013-01.parquet"),
    ],
)
def test_a_name_that_is_not_taken_becomes_one_that_is(name, sent):
    assert allowed_name(name) == sent


@given(st.lists(st.one_of(st.text(max_size=300), st.text("@._/: a", max_size=6)), unique=True, max_size=20))
def test_every_name_becomes_one_that_mlflow_takes_and_that_no_other_has(names):
    sent = SentNames()
    sent.learn(names)
    found = [sent[name] for name in names]
    assert all(map(is_allowed, found))
    assert len({*found}) == len(names)
    assert all(sent[name] == name for name in names if is_allowed(name) and len(name) <= 240)


def test_a_later_process_sends_under_the_same_names():
    first = SentNames()
    assert first.learn(["loss", "acc@5"]) == {"acc@5": "acc_at_5"}
    assert first.learn(["acc@5", "acc_at_5"])["acc_at_5"].startswith("acc_at_5_")
    later = SentNames(first.changed)
    assert later.learn(["acc_at_5", "acc@5", "loss"]) == {}
    assert [later[name] for name in ("acc@5", "acc_at_5")] == [first[name] for name in ("acc@5", "acc_at_5")]
