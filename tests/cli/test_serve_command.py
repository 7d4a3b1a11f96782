"""`segue serve` refuses a server or a pool that it cannot use; tests/flows/deployments/test_serve.py has its runs."""

from __future__ import annotations

import pytest

from tests.cli.test_errors import Place, refusal


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path / "place")


@pytest.mark.matrix
def test_without_a_server_it_says_what_is_missing(place):
    outcome = place.run("serve")
    assert "serve needs the Prefect server whose runs it serves. Fix: set PREFECT_API_URL" in refusal(outcome)


@pytest.mark.matrix
def test_a_server_that_does_not_answer_is_named(place, closed_port):
    place.set("PREFECT_API_URL", f"http://127.0.0.1:{closed_port}/api")
    assert f"the Prefect server at http://127.0.0.1:{closed_port}/api does not answer" in refusal(place.run("serve"))
