"""A Prometheus server of Debian's package, for one test, with the rules and the configuration that segue ships."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from segue.deployments.local_stack.stack import free_port

MONITORING = Path(__file__).parents[3] / "deployments" / "monitoring"
LIMIT_SECONDS = 240.0
WHY_NOT = "Prometheus is not installed; apt-get install prometheus"


class Prometheus:
    """The HTTP API of a running server."""

    def __init__(self, url: str) -> None:
        self._api = f"{url}/api/v1"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an expression now; fails if Prometheus refuses it."""
        answer = httpx.get(f"{self._api}/query", params={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        return answer["data"]["result"]

    def value(self, expression: str) -> float | None:
        """The value of an expression with one series at most."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        """The result of an expression, once it has one."""
        give_up_at = time.monotonic() + LIMIT_SECONDS
        while not (found := self.query(expression)):
            assert time.monotonic() < give_up_at, f"no data for {expression}: {httpx.get(f'{self._api}/targets').text}"
            time.sleep(0.2)
        return found


@contextmanager
def running_prometheus(folder: Path, *scraped: str) -> Iterator[Prometheus]:
    """A server that scrapes these URLs every second. Skips where Prometheus is not installed."""
    if shutil.which("prometheus") is None:
        pytest.skip(WHY_NOT)
    settings = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (job,) = settings["scrape_configs"]
    job |= {"scrape_interval": "1s", "static_configs": [{"targets": [urlsplit(url).netloc for url in scraped]}]}
    shutil.copy(MONITORING / "alerts.yml", folder)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    url = f"http://127.0.0.1:{free_port(0)}"
    command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={urlsplit(url).netloc}"], cwd=folder, stderr=log)
    try:
        _wait_until_ready(url, process)
        yield Prometheus(url)
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + LIMIT_SECONDS
    while True:
        assert process.poll() is None
        assert time.monotonic() < give_up_at
        try:
            if httpx.get(f"{url}/-/ready").is_success:
                return
        except httpx.TransportError:
            pass  # It does not listen yet.
        time.sleep(0.1)
