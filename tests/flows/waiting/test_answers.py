"""Questions to the Prefect API that are asked again, and no question twice at a time."""

from __future__ import annotations

import httpx
import pytest
from prefect.exceptions import ObjectNotFound

from segue.errors import OrchestratorError
from segue.prefect.answers import Answers


class Post:
    """A messenger whose messages a test delivers."""

    def __init__(self):
        self.messages = []

    def deliver(self, message):
        self.messages.append(message)


def status_error(status):
    request = httpx.Request("POST", "http://127.0.0.1/")
    return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    "error",
    [ObjectNotFound(http_exc=status_error(404)), status_error(422), OrchestratorError(what="no.", fix="none.")],
    ids=["not found", "refused", "no deployment"],
)
def test_a_question_that_was_refused_is_asked_again(error):
    post = Post()
    answers = Answers(post, what="it", period_seconds=0.0)
    said = iter([7.0, error, 8.0])

    def ask(client):
        found = next(said)
        if isinstance(found, Exception):
            raise found
        return found

    seen = []
    for number in range(3):
        seen.append(answers.newest("pool", ask))
        assert len(post.messages) == number + 1
        assert answers.newest("pool", ask) == seen[-1], "one question at a time"
        assert len(post.messages) == number + 1
        post.messages[-1](None)
    assert [*seen, answers.newest("pool", ask)] == [None, 7.0, 7.0, 8.0]


def test_a_question_in_an_outage_is_left_to_the_messenger():
    post = Post()
    answers = Answers(post, what="it", period_seconds=0.0)

    def ask(client):
        raise httpx.ConnectError("no answer")

    answers.newest("pool", ask)
    with pytest.raises(httpx.ConnectError):
        post.messages[-1](None)
    answers.newest("pool", ask)
    assert len(post.messages) == 1
