"""Converts names of metrics, parameters and tags to names that MLflow accepts. The module is pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

_MOST_CHARACTERS = 240
"""Largest number of characters of a name without its digest. MLflow accepts 250 characters in all."""
_OTHER = re.compile(r"[^\w.\- /]")


def allowed_name(name: str) -> str:
    """Return the name itself if MLflow accepts the name.

    Otherwise return a similar name, for example `acc_at_5` for `acc@5`. MLflow accepts letters, digits, `_`, `-`, `.`,
    spaces, and `/` between parts that are valid file names.
    """
    text = _OTHER.sub("_", name.replace("@", "_at_"))
    text = "/".join(part for part in text.split("/") if part not in ("", ".", "..")) or "_"
    if text.startswith(".."):
        text = f"_{text}"
    return text if len(text) <= _MOST_CHARACTERS else with_digest(text, name)


def with_digest(text: str, name: str) -> str:
    """Return the text with a digest of the name, so that no other name gives the same text."""
    return f"{text[:_MOST_CHARACTERS]}_{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"


class SentNames:
    """The MLflow name for each name of a run. Two names of a run never get the same MLflow name."""

    def __init__(self, changed: Mapping[str, str] | None = None) -> None:
        """`changed` contains the names that an earlier process sent under other names."""
        self._sent = dict(changed or {})

    def __getitem__(self, name: str) -> str:
        return self._sent[name]

    def learn(self, names: Iterable[str]) -> dict[str, str]:
        """Choose the MLflow names for these names. Return the new names with a different MLflow name.

        Names that MLflow accepts unchanged come first. If another name would become the same, this other name gets a
        digest.
        """
        found = {}
        for name in sorted({*names} - self._sent.keys(), key=lambda each: (allowed_name(each) != each, each)):
            text = allowed_name(name)
            if text in self._sent.values():
                text = with_digest(text, name)
            self._sent[name] = text
            if text != name:
                found[name] = text
        return found

    @property
    def changed(self) -> dict[str, str]:
        """All names that are sent under other names."""
        return {name: text for name, text in self._sent.items() if text != name}
