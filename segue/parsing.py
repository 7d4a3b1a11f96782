"""Turns plain data into a model, and errors in the data into readable messages."""

from __future__ import annotations

import difflib
import typing
from typing import Any

from pydantic import BaseModel, ValidationError

from segue.credentials import masked, names_secret
from segue.errors import SpecError

_Model = typing.TypeVar("_Model", bound=BaseModel)


def parsed(model: type[_Model], data: object, *, source: str) -> _Model:
    """Return the data, validated as `model`.

    Raises:
        SpecError: some fields are wrong. The error names the path and the fix of each field.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = tuple(_problem(model, item) for item in error.errors())
        raise SpecError(source=source, problems=problems) from None


_PATTERNS = {
    "run_id": ("must be 1 to 63 lower-case letters, digits, '.', '_' or '-'", "nightly-1"),
    "recipe": ("must be package.module:function", "examples.flights:build, or -- python train.py for a program"),
    "deployment": ("must be a deployment, as flow/name", "segment/spot"),
    "on_demand": ("must be a deployment, as flow/name", "segment/on-demand"),
    "market": ("must be an instance type and a zone", "g5.xlarge us-east-1a"),
    "endpoint_url": ("must be a URL", "http://127.0.0.1:9000"),
}
"""Maps each field name to the required form of the field's text, and to an example."""


def _problem(model: type[BaseModel], item: Any) -> str:
    path = ".".join(str(part) for part in _without_tags(item["loc"])) or "the document"
    return f"{path}: {_what_is_wrong(model, item)}"


def _what_is_wrong(model: type[BaseModel], item: Any) -> str:
    """Return the error of one field, in the form `problem (got value); fix`."""
    where, given = item["loc"], _shown(item["loc"], item["input"])
    match item["type"]:
        case "extra_forbidden":
            return _unknown_field(str(where[-1]), known=_fields_at(model, where[:-1]))
        # The message does not show the given value: options of a tracker or a command may be secret.
        case "recipe_or_program" | "ray" | "tracker" | "window" | "data" | "prices" | "budget" | "secret":
            return str(item["msg"])
        case "missing":
            return "required field is missing"
        case "string_pattern_mismatch" if where[-1] in _PATTERNS and where[0] not in ("slurm", "ray"):
            rule, example = _PATTERNS[where[-1]]
            return f"{rule} (got {given}); example: {example}"
        case "timezone_aware":
            return f"must have a time zone (got {given}); add one, e.g. Z or +01:00"
        case "datetime_parsing" | "datetime_from_date_parsing" | "datetime_type":
            return f"must be a time (got {given}); example: 2026-12-01T06:00:00+00:00"
        case "model_type":
            return f"must be a table (got {given}); its fields are {', '.join(_fields_at(model, where))}"
        case "dict_type":
            return f"must be a table (got {given})"
        case "invalid-json-value" | "finite_number" if where[0] == "config":
            return f"must be a JSON value (got {given}); use a string"
    return f"{item['msg'][0].lower()}{item['msg'][1:]} (got {given})"


def _shown(where: tuple[int | str, ...], value: object) -> str:
    """Return the form in which messages show a value. Messages do not show a value that may be secret."""
    return "a value that is not shown" if any(names_secret(str(name)) for name in where) else masked(repr(value))


def _unknown_field(name: str, *, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return "unknown field; " + (f"did you mean {close[0]!r}?" if close else f"known fields are {', '.join(known)}")


def _without_tags(path: tuple[int | str, ...]) -> tuple[int | str, ...]:
    # Below [config], pydantic inserts the type of each value between the keys: config.sizes.list.0.float.
    return tuple(part for at, part in enumerate(path) if path[0] != "config" or at < 2 or at % 2 == 1)


def _fields_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue  # For an index of a list, the field before the index gives the type.
        annotation = current.model_fields[part].annotation
        options = typing.get_args(annotation) or (annotation,)
        current = next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))
    return list(current.model_fields)
