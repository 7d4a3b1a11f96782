"""The `segue` command within the test's own process: the same entry point, without the seconds that a process takes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from segue.cli import main
from tests.cli.test_errors import Outcome, refusal


class Desk:
    """An empty folder in which commands are run."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        monkeypatch.chdir(folder)
        # On a slow machine it would be said how far a command is.
        monkeypatch.setattr("segue.reports.console.QUIET_SECONDS", 3600.0)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")

    def write(self, name: str, text: str) -> str:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)
        return name

    def files(self) -> set[str]:
        return {str(path) for path in self.folder.rglob("*")}

    def run(self, *arguments: str) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["segue", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return Outcome(int(ended.value.code or 0), *self._capsys.readouterr())

    def told(self, *arguments: str) -> dict[str, Any]:
        """What a command says with `--json`."""
        outcome = self.run(*arguments, "--json")
        assert (outcome.code, outcome.err) == (0, ""), outcome
        return json.loads(outcome.out)

    def refused(self, *arguments: str) -> str:
        """What a command says that is refused as it should be, and leaves nothing behind."""
        before = self.files()
        said = refusal(self.run(*arguments))
        assert self.files() == before
        return said
