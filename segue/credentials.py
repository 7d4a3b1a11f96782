"""Credentials in what is stored and shown, such as the run spec, by the form and the names of values."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

_CREDENTIALS = re.compile(r"[A-Za-z][\w+.-]+:(//?)[^/\s?#@]*@")
"""Of a URL of any scheme, also where its slashes are forgotten."""
_SIGNED_QUERY = re.compile(r"[?&](X-Amz-Signature|X-Amz-Security-Token|sig|access_token|api_key|token|password)=", re.I)
_KNOWN_FORMS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\b(AKIA|ASIA)[0-9A-Z]{16}\b|\bhf_[A-Za-z]{30,}|\bgh[pousr]_\w{30,}|\bsk-[\w-]{20,}"
)
_SECRET_WORDS = {"password", "passwd", "passphrase", "secret", "credential", "credentials", "apikey"}
_SECRET_PAIRS = {(first, "key") for first in ("api", "access", "private", "secret", "auth", "signing")}
_SECRET_PAIRS |= {("auth", "string")}
_TOKEN_OF = {"access", "api", "auth", "bearer", "refresh", "session", "hf", "tracking", "wandb"}
"""What comes before `token` in the name of a secret; `pad_token` and `eos_token` are none."""
_REFERENCE = re.compile(r"(env|file):.+")
_LEAST_LENGTH = 8
_LEAST_KEY_LENGTH = 16
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")

_IN_TEXT = re.compile(r"([A-Za-z][\w+.-]+:(?://?))[^/\s@'\"]+@")
HIDDEN = "(hidden)"

_WHERE_TO = "read it in the training code from a variable or a mounted file"


def holds_credentials(text: str) -> bool:
    """Whether a text begins with a URL that has a user name or password."""
    return _CREDENTIALS.match(text) is not None


def without_credentials(url: str) -> str:
    """The same URL.

    Raises:
        PydanticCustomError: it holds credentials.
    """
    if holds_credentials(url):
        from pydantic_core import PydanticCustomError  # Not at the top: the writer process starts without pydantic.

        text = "holds credentials, which would be stored; give them by variables, a profile or the machine's role"
        raise PydanticCustomError("secret", text)
    return url


def masked(text: str) -> str:
    """The text without what stands before the @ of URLs in it."""
    return _IN_TEXT.sub(r"\1...@", text)


def redacted(text: str) -> str:
    """The text without credentials of URLs, and without secrets of this process's environment.

    Those are the values of variables whose names say so, also where they are quoted or escaped.
    """
    text = _KNOWN_FORMS.sub(HIDDEN, masked(text))
    for secret in _secrets_of(tuple(os.environ.items())):
        text = text.replace(secret, HIDDEN)
    return text


@functools.lru_cache(maxsize=4)
def _secrets_of(environment: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """The forms in which secrets of an environment may appear in a line of text, the longest first."""
    lines = {
        line
        for name, value in environment
        if _is_given(value) and _is_secret_variable(name, value)
        for line in (value, *value.splitlines())
        if len(line) >= _LEAST_LENGTH
    }
    forms = {form for line in lines for form in (line, *_written_forms(line))}
    return tuple(sorted(forms, key=len, reverse=True))


def _written_forms(text: str) -> tuple[str, ...]:
    """A text as Python, JSON and URLs write it."""
    in_json = (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    return (repr(text)[1:-1], *in_json, quote(text), quote(text, safe=""))


def _is_secret_variable(name: str, value: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    if words[-1:] in (["file"], ["path"], ["dir"], ["folder"]):
        return False
    # Keys of other kinds, such as that of a table, are words, and words must stay readable.
    return names_secret(name) or (words[-1:] in (["token"], ["key"]) and len(value) >= _LEAST_KEY_LENGTH)


def names_secret(name: str) -> bool:
    """Whether a value of this name is a secret, as far as a name tells."""
    words = [word.lower() for word in _WORDS.findall(name)]
    pairs = set(itertools.pairwise(words))
    is_token = words == ["token"] or any(last == "token" and first in _TOKEN_OF for first, last in pairs)
    return bool(_SECRET_WORDS & set(words) or _SECRET_PAIRS & pairs or is_token)


def secrets_in(fields: Mapping[str, object]) -> tuple[str, ...]:
    """What is wrong in the fields of a run spec, by the path of each; no value is in it."""
    return tuple(dict.fromkeys(_found("", fields)))


def _found(path: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            where = f"{path}.{name}" if path else str(name)
            if _is_given(inner) and names_secret(str(name)) and where != "store.signing_key":
                yield f"{where}: has the name of a secret, and would be stored; {_WHERE_TO}"
            else:
                yield from _found(where, inner)
    elif isinstance(value, str):
        if holds_credentials(value) or _SIGNED_QUERY.search(value) or _KNOWN_FORMS.search(value):
            yield f"{path}: holds credentials, which would be stored; {_WHERE_TO}"
    elif isinstance(value, Sequence):
        yield from _found_in_list(path, value)


def _found_in_list(path: str, values: Sequence[object]) -> Iterator[str]:
    """The same for a list, which may be a command with options."""
    before = ""
    for number, value in enumerate(values):
        option, equals, given = str(value).partition("=") if isinstance(value, str) else ("", "", "")
        if equals and option.startswith("-") and names_secret(option) and _is_given(given):
            yield f"{path}: option {option} has the name of a secret, and would be stored; {_WHERE_TO}"
        elif before.startswith("-") and "=" not in before and names_secret(before) and _is_given(value):
            yield f"{path}: option {before} has the name of a secret, and would be stored; {_WHERE_TO}"
        else:
            yield from _found(f"{path}.{number}", given if equals and option.startswith("-") else value)
        before = value if isinstance(value, str) else ""


def _is_given(value: object) -> bool:
    """Whether a value may be a secret itself: a text that is long enough, and no reference to one."""
    return isinstance(value, str) and len(value) >= _LEAST_LENGTH and not _REFERENCE.fullmatch(value)
