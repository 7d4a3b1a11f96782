"""Tables of every field of a spec: type, default and meaning, as its pydantic classes have them."""

from __future__ import annotations

import enum
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AwareDatetime, BaseModel
from pydantic.fields import FieldInfo

MORE = {
    "RunSpec": {
        "recipe": "recipes.md",
        "program": "programs.md",
        "notices": "operations.md#termination-notices",
        "ranks": "ranks.md",
        "data": "your-data.md",
        "store": "object-stores.md",
        "checkpoints": "checkpoints.md",
        "budget": "deadline.md#prices-and-budget",
        "continuity": "continuity.md",
        "continuity.rehearsal": "continuity.md#resume-rehearsal",
        "continuity.accept": "continuity.md#setup",
        "anomalies": "continuity.md#non-finite-values-and-spikes",
        "policy": "deadline.md",
        "policy.handover": "operations.md#return-to-spot",
        "liveness": "operations.md#failed-attempts",
        "liveness.rank_seconds": "ranks.md#when-a-rank-fails",
        "liveness.slow_start_seconds": "operations.md#slow-starts",
        "liveness.start_seconds": "operations.md#capacity-timeout",
        "pools": "deadline.md#several-spot-pools",
        "ray": "ray.md",
        "segment": "how-it-works.md#planned-ends",
        "slurm": "slurm.md",
        "trackers": "trackers.md",
    },
}
"""By the class of a spec: the page about a table or a field of it."""

_WORDS = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    AwareDatetime: "time",
    datetime: "time",
    date: "date",
    Path: "path",
}


def fields_text(model: type[BaseModel]) -> str:
    """Every field of a spec: one table for the fields outside of tables, and one for each table."""
    return "\n".join(_section(model, path="", repeated=False, more=MORE.get(model.__name__, {})))


def _section(model: type[BaseModel], *, path: str, repeated: bool, more: Mapping[str, str]) -> Iterator[str]:
    inner: list[tuple[str, type[BaseModel], bool]] = []
    rows = []
    for name, field in model.model_fields.items():
        if name == "schema_version":
            continue
        below = _models_in(field.annotation)
        inner += [(f"{path}{name}", each, _is_many(field.annotation)) for each in below]
        if not below or path:  # A table of the run spec has a heading of its own; one within it has a row as well.
            rows.append(_row(f"{path}{name}", field, more))
    if path:
        yield from (f"## `{'[[' if repeated else '['}{path[:-1]}{']]' if repeated else ']'}`", "")
        yield from (_first_paragraph(model.__doc__) + _more(path[:-1], more), "")
    yield from ("| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows, "")
    for below_path, each, is_many in inner:
        yield from _section(each, path=f"{below_path}.", repeated=is_many, more=more)


def _row(path: str, field: FieldInfo, more: Mapping[str, str]) -> str:
    given = (f"`{path}`", type_text(field), _default(field), _linked(field.description or "") + _more(path, more))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in given) + " |"


def _linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)


def _more(path: str, more: Mapping[str, str]) -> str:
    page = more.get(path)
    return f" See [{page.partition('#')[0]}]({page})." if page is not None else ""


def type_text(field: FieldInfo) -> str:
    """A field's type and range in words."""
    extra = field.json_schema_extra
    names = extra.get("enum") if isinstance(extra, dict) else None
    words = ", ".join(str(name) for name in names) if isinstance(names, list) else _words(field.annotation)
    bounds = [f"{sign} {bound:,}" for bound, sign in _bounds(field) if bound < 2**60]
    return f"{words} {' and '.join(bounds)}" if bounds else words


def _bounds(field: FieldInfo) -> Iterator[tuple[Any, str]]:
    for rule in field.metadata:
        match rule:
            case Gt(gt):
                yield gt, ">"
            case Ge(ge):
                yield ge, ">="
            case Lt(lt):
                yield lt, "<"
            case Le(le):
                yield le, "<="


def _words(annotation: Any) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _words(inner[0])
    if origin is typing.Literal:
        return ", ".join(str(value) for value in inner)
    if origin in (types.UnionType, typing.Union):
        return _words(next(part for part in inner if part is not type(None)))
    if origin is tuple:
        return "list of tables" if _models_in(inner[0]) else f"list of {_words(inner[0])}"
    if origin is dict:
        return "table"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return ", ".join(str(member.value) for member in annotation)
    return _WORDS[annotation]


def _default(field: FieldInfo) -> str:
    """A default as TOML has it; none is a field that is left out."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return f"`{json.dumps(value.model_dump(exclude_defaults=True))}`"
    plain = [each.model_dump(exclude_none=True) for each in value] if _models_in(field.annotation) else value
    return f"`{json.dumps(plain)}`"


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found = [each for part in typing.get_args(annotation) for each in _models_in(part)]
    return list(dict.fromkeys(found))


def _is_many(annotation: Any) -> bool:
    if typing.get_origin(annotation) is tuple:
        return True
    return any(_is_many(part) for part in typing.get_args(annotation))


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())
