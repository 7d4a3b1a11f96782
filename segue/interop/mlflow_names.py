"""Names of metrics, parameters and tags as MLflow takes them. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

_MOST_CHARACTERS = 240
"""MLflow takes 250; the rest is for the digest that tells two names apart."""
_OTHER = re.compile(r"[^\w.\- /]")


def allowed_name(name: str) -> str:
    """The name itself if MLflow takes it, otherwise a similar one: `acc_at_5` for `acc@5`.

    MLflow takes letters, digits, `_`, `-`, `.`, spaces, and `/` between parts that are names of files.
    """
    text = _OTHER.sub("_", name.replace("@", "_at_"))
    text = "/".join(part for part in text.split("/") if part not in ("", ".", "..")) or "_"
    if text.startswith(".."):
        text = f"_{text}"
    return text if len(text) <= _MOST_CHARACTERS else with_digest(text, name)


def with_digest(text: str, name: str) -> str:
    """A text that no other name has."""
    return f"{text[:_MOST_CHARACTERS]}_{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"


class SentNames:
    """The names under which the names of a run are sent. No two of them are sent under one name."""

    def __init__(self, changed: Mapping[str, str] | None = None) -> None:
        """`changed` are the names that an earlier process sent under other ones."""
        self._sent = dict(changed or {})

    def __getitem__(self, name: str) -> str:
        return self._sent[name]

    def learn(self, names: Iterable[str]) -> dict[str, str]:
        """Choose how names are sent; returns those among the new ones that are changed.

        Names that MLflow takes as they are come first: another one that would become the same gets a digest.
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
        """All names that are sent under other ones."""
        return {name: text for name, text in self._sent.items() if text != name}
