"""The texts of Python's own help as files that arrive one after the other: `python -m examples.chargpt.texts 3`."""

from __future__ import annotations

import sys
from pathlib import Path
from pydoc_data.topics import topics

import pandas as pd

FILES = 6
FOLDER = Path(".segue/texts")
SHORTEST_BYTES = 65
"""Shorter paragraphs are left out: the evaluation looks at as many bytes of each."""


def deliver(number: int, folder: Path) -> Path:
    """Write every sixth paragraph, from this one on; a reader never sees half of the file."""
    rows = [(name, paragraph) for name in sorted(topics) for paragraph in _paragraphs(topics[name])][number::FILES]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"texts-{number + 1:02}.parquet"
    partial = path.with_suffix(".partial")
    pd.DataFrame(rows, columns=["topic", "text"]).to_parquet(partial)
    return partial.rename(path)


def _paragraphs(text: str) -> list[str]:
    parts = (part.strip() for part in text.split("\n\n"))
    return [part for part in parts if len(part.encode()) >= SHORTEST_BYTES]


if __name__ == "__main__":
    for each in range(int(sys.argv[1])):
        deliver(each, FOLDER)
