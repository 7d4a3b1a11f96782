"""One real Prefect for the whole session: server, three process pools, a worker each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from segue.deployments.process.stack import LocalStack

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    said: list[str] = []
    stack = LocalStack(tmp_path_factory.mktemp("prefect"), home=REPO, say=said.append)
    before = prefect_environment()
    try:
        stack.start()
        with stack.settings():
            yield stack
    finally:
        stack.stop()
        assert prefect_environment() == before


def prefect_environment() -> dict[str, str]:
    """What the stack may set and must put back; torch and pytest have variables of their own."""
    return {name: text for name, text in os.environ.items() if name.startswith(("PREFECT_", "SEGUE_"))}
