"""Finds credentials in texts before segue stores or shows the texts.

The form of a value, or its name, shows that the value is a credential. If a text that segue would store contains a
credential, segue refuses the text. Before segue shows a text, segue removes all credentials from it. A reference to a
secret (`$NAME`, `env:NAME`) is not a credential.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

_CREDENTIALS = re.compile(r"[A-Za-z][\w+.-]+:(//?)[^/\s?#@]*@")
"""This pattern finds credentials in a URL of any scheme, even if the slashes of the URL are missing."""
_IN_TEXT = re.compile(r"([A-Za-z][\w+.-]+:(?://?))[^/\s'\"]+@")
_USER_INFO = re.compile(r"([A-Za-z][\w+.-]+):/{1,2}([^/\s?#'\"]*)@")
_USER_ALONE = {"ssh", "git", "git+ssh", "sftp", "rsync", "hdfs", "abfs", "abfss", "wasb", "wasbs"}
"""Schemes of URLs in which a name before the @ is an account or a container, and not a credential."""
_SIGNED_QUERY = re.compile(
    r"[?&;#]((?:x-(?:amz|goog|oss|cos|ms)-)?(?:signature|security-token)|sig|hmac|auth|code|key)=([^&#;\s'\"]+)", re.I
)
_RANDOM_QUERY = {"code", "key", "auth"}
"""Query parameters whose values are often harmless.

Only a value that looks random counts as a credential.
"""
_KNOWN_FORMS = re.compile(
    r"""
    -----BEGIN\ [A-Z ]*PRIVATE\ KEY (?:[^-]*-----[^-]*)? | AGE-SECRET-KEY-1\w{20,} | PuTTY-User-Key-File
    | \b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b                                                     # AWS
    | \bAIza[\w-]{35} | \bya29\.[\w-]{20,} | \bGOCSPX-[\w-]{20,}                                  # Google
    | \bhf_[A-Za-z0-9]{30,} | \bapi_org_[A-Za-z0-9]{30,}                                          # Hugging Face
    | \bgh[pousr]_\w{30,} | \bgithub_pat_\w{30,} | \bgl(?:pat|dt|rt|cbt|ptt|ft|soat)-[\w.-]{20,}    # GitHub, GitLab
    | \bsk-(?:proj|ant|svcacct|admin|or|lf)-[\w-]{20,} | \bsk-[A-Za-z0-9]{20,}                    # OpenAI, Anthropic
    | \bxox[a-z]-[\w-]{10,} | \bxapp-[\w-]{10,} | hooks\.slack\.com/(?:services|workflows)/[\w/]+  # Slack
    | discord(?:app)?\.com/api/webhooks/\d+/[\w-]+ | \b\d{8,10}:AA[\w-]{33}\b                     # Discord, Telegram
    | \b[srp]k_(?:live|test)_\w{16,} | \bwhsec_\w{20,} | \bSG\.[\w-]{16,}\.[\w-]{16,}              # Stripe, SendGrid
    | \bnpm_\w{30,} | \bpypi-AgE[\w-]{30,} | \bdckr_[a-z]+_[\w-]{20,} | \brubygems_\w{30,}         # packages, images
    | \bpn[ub]_\w{20,} | \bwandb_v\d_\w{20,} | \bdapi[0-9a-f]{32} | \bdo[opr]_v1_[0-9a-f]{32,}
    | \bhv[sbr]\.[\w-]{20,} | \bgl(?:sa|c)_[\w+/=-]{20,} | \bsntry[su]_[\w+/=-]{20,} | \blin_api_\w{20,}
    | \br8_\w{30,} | \bgsk_\w{30,} | \bnvapi-[\w-]{30,} | \brpa_[A-Z0-9]{30,} | \bfigd_[\w-]{30,}
    | \beyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)? | \beyJhcGlf[\w+/-]{20,}={0,2}                    # JWT, Neptune
    | \b(?:Account|SharedAccess)Key=[\w+/]{20,}={0,2}                                            # Azure
    """,
    re.VERBOSE,
)
_HEADER = re.compile(
    r"(?P<is_header>\bAuthorization[\"']?\s*[:=]\s*[\"']?)?\b(?:Bearer|Basic|Token|Negotiate)\s+(?P<secret>[\w.+/~-]{8,}=*)",
    re.I,
)
_USER_OPTION = re.compile(
    r"(?:^|\s)(?:(?:-u|--(?:proxy-)?user)[\s=]*[\"']?[^\s:\"'$]*:|sshpass\s+-p\s*)(?P<secret>[^\s\"']+)"
)
_MAY_NAME_SECRETS = re.compile(r"pass|pwd|secret|credential|key|token|auth", re.I)
_NAME = re.compile(r"(?<![\w$%{-])(-{0,2})([A-Za-z_][\w.-]*)")
_VALUE = re.compile(
    r"[\"']?(?P<between>\s*[=:]\s*|\s+)"
    r"(?:\"(?P<quoted>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>\$\([^()]*\)|\$\{[^{}]*\}|[^\s,;&'\"]+))"
)
_CODE = re.compile(r"[A-Za-z_][\w.]*[(\[]|[A-Za-z_]+(\.[A-Za-z_]+)+$")
"""This pattern finds code instead of a value: a call, an index or an attribute, as in `password=load()`."""

_SECRET_WORDS = {"password", "passwd", "passphrase", "secret", "credential", "apikey"}
_SECRET_ENDINGS = (
    *("password", "passwd", "passphrase", "apikey", "clientsecret", "accesskey", "secretkey"),
    *("privatekey", "accountkey", "accesstoken", "authtoken", "apitoken"),
)
_SECRET_PAIRS = {(first, "key") for first in ("api", "access", "private", "secret", "auth", "signing", "account")}
_SECRET_PAIRS |= {(first, "key") for first in ("encryption", "master", "shared", "subscription", "storage", "wandb")}
_SECRET_PAIRS |= {(first, "pass") for first in ("db", "user", "mysql", "smtp", "redis", "ftp", "http", "admin", "root")}
_SECRET_PAIRS |= {(first, "pwd") for first in ("db", "user", "mysql", "smtp", "redis", "ftp", "http", "admin", "root")}
_SECRET_PAIRS |= {("auth", "string"), ("basic", "auth")}
_TOKEN_OF = {"access", "api", "auth", "bearer", "refresh", "session", "hf", "tracking", "wandb", "hub", "huggingface"}
_TOKEN_OF |= {"github", "gitlab", "slack", "bot", "openai", "jwt", "sas", "security", "personal", "deploy", "neptune"}
_TOKEN_OF |= {"comet", "vault", "npm", "pypi", "registry", "influx", "prefect", "service", "id"}
"""Words before `token` in the names of secrets. `pad_token` and `eos_token` are not secrets."""
_NAMES_OF_OTHERS = {"file", "path", "dir", "folder", "name", "arn", "env", "var", "variable", "column", "field"}
_NAMES_OF_OTHERS |= {"profile", "length", "size", "dim", "provider", "scope", "manager", "type", "kind", "ref"}
"""Last words of names that are not secret. Their values describe a secret, for example the path of its file."""
_PASSWORDS = ("password", "passwd", "passphrase", "pass", "pwd")
_NO_PASSWORDS = {"none", "null", "true", "false", "prompt", "required", "optional", "undefined"}

_REFERENCE = re.compile(r"(env|file):.+")
_INNER_REFERENCE = re.compile(
    r"\$\w+|\$\{[\w.:]+(?:[?+][^{}]*)?\}|\$\([^()]*\)|`[^`]*`|%\w+%|\{\{.*?\}\}|<[^<>]*>|\*{3,}|\.{3,}|\(hidden\)"
)
"""This pattern finds placeholders that a shell, Hydra, a template or a person later replaces by a value."""
_LEAST_LENGTH, _LEAST_PASSWORD_LENGTH = 8, 4
_LEAST_KEY_LENGTH = 16
_MOST_REDACTED_BYTES = 64 * 1024
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")

HIDDEN = "(hidden)"

_WHERE_TO = "read it in the training code from a variable or a mounted file"
_WHERE_TO_IN = {
    "pools.prices": "write $NAME in the command, and set that variable in the environment of parents",
    "slurm.options": "name only the variable, as in --export=ALL,NAME, and set it in the environment of parents",
}


def holds_credentials(text: str) -> bool:
    """Whether a text begins with a URL that has a user name or password."""
    return _CREDENTIALS.match(text) is not None


def without_credentials(url: str) -> str:
    """Return the URL, if it contains no credentials.

    Raises:
        PydanticCustomError: the URL contains credentials.
    """
    if holds_credentials(url) or any(_forms_in(url)):
        from pydantic_core import PydanticCustomError  # Not at the top: the writer process starts without pydantic.

        text = "holds credentials, which would be stored; give them by variables, a profile or the machine's role"
        raise PydanticCustomError("secret", text)
    return url


def masked(text: str) -> str:
    """Return the text, with `...` in place of the user name and password of each URL."""
    return _IN_TEXT.sub(r"\1...@", text)


def redacted(text: str) -> str:
    """Return the text without credentials and without the secrets in this process's environment.

    A value that looks like a credential, or whose name is a credential's name, is a credential. If an environment
    variable has the name of a credential, its value is a secret. Quoted and escaped forms of secrets are removed too.
    """
    for secret in _secrets_of(tuple(os.environ.items())):
        text = text.replace(secret, HIDDEN)
    text = masked(text)
    rest, end = [], 0
    for start, stop in sorted(_forms_in(text)):
        if stop > end:
            rest += [text[end : max(start, end)], HIDDEN if start >= end else ""]
            end = stop
    return "".join([*rest, text[end:]])


def redacted_end(output: bytes, *, most_characters: int) -> str:
    """Return the end of a command's output without secrets.

    The function removes secrets before it cuts the output, because it would not recognize half a secret.
    """
    text = redacted(output[-_MOST_REDACTED_BYTES:].decode("utf-8", "replace")).strip()
    return text[-most_characters:]


def _forms_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of values that have the form of a credential, or that follow a credential's name."""
    for found in _USER_INFO.finditer(text):
        name, colon, password = found[2].partition(":")
        is_account = not colon and found[1].lower() in _USER_ALONE
        if not is_account and _is_given(password if colon else name, least=1):
            yield found.span(2)
    for found in _SIGNED_QUERY.finditer(text):
        if _is_given(found[2]) and (found[1].lower() not in _RANDOM_QUERY or _is_random(found[2])):
            yield found.span(2)
    yield from (found.span() for found in _KNOWN_FORMS.finditer(text))
    for found in _HEADER.finditer(text):
        if found["is_header"] or _is_random(found["secret"]):
            yield found.span("secret")
    for found in _USER_OPTION.finditer(text):
        # `-u 1000:1000` of docker has ids and no password.
        if _is_given(found["secret"], least=1) and not found["secret"].isdecimal():
            yield found.span("secret")
    if _MAY_NAME_SECRETS.search(text):
        yield from _named_in(text)


def _named_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of values of named secrets in a text.

    The forms are NAME=value, "name": "value" and --name value.
    """
    for name in _NAME.finditer(text):
        if not names_secret(name[2]):
            continue
        found = _VALUE.match(text, name.end())
        if found is None or (found["between"].isspace() and not name[1]):
            continue
        kind = str(found.lastgroup)
        value = found[kind]
        is_prose = ":" in found["between"] and kind == "bare" and not any(map(str.isdigit, value))
        if not is_prose and not _CODE.match(value) and not names_secret(value) and is_secret(name[2], value):
            start, stop = found.span(kind)
            yield start, stop - (len(value) - len(value.rstrip(")]}>.")) if kind == "bare" else 0)


@functools.lru_cache(maxsize=4)
def _secrets_of(environment: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the forms in which the secrets of an environment may appear in a line of text, the longest first."""
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
    """Return the forms in which Python, JSON, URLs and headers write a text."""
    in_json = (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    encoded = text.encode("utf-8", "surrogateescape")
    in_base64 = (base64.b64encode(encoded).decode(), base64.urlsafe_b64encode(encoded).decode())
    return (repr(text)[1:-1], *in_json, quote(encoded), quote(encoded, safe=""), *in_base64)


def _is_secret_variable(name: str, value: str) -> bool:
    words = _words_of(name)
    if not words or words[-1] in _NAMES_OF_OTHERS:
        return False
    # A key of another kind, such as the key of a table, is usually a word, and words must stay readable.
    return names_secret(name) or (words[-1] in ("token", "key") and len(value) >= _LEAST_KEY_LENGTH)


def names_secret(name: str) -> bool:
    """Whether the name of a value shows that the value is a secret."""
    words = _words_of(name)
    if not words or words[-1] in _NAMES_OF_OTHERS:
        return False
    pairs = set(itertools.pairwise(words))
    is_token = words == ["token"] or any(last == "token" and first in _TOKEN_OF for first, last in pairs)
    is_glued = any(word.endswith(_SECRET_ENDINGS) for word in words)
    return bool(_SECRET_WORDS & set(words) or _SECRET_PAIRS & pairs or is_token or is_glued)


def _words_of(name: str) -> list[str]:
    """Return the words of a name, in lower case. Words for secrets are returned in the singular."""
    words = [word.lower() for word in _WORDS.findall(name)]
    plurals = {f"{word}s": word for word in (*_SECRET_WORDS, "key")}
    singular = [plurals.get(word, word) for word in words]
    if len(words) > 1:  # `tokens` alone is a count; `access_tokens` are secrets.
        singular = ["token" if word == "tokens" else word for word in singular]
    return singular


def is_secret(name: str, value: object) -> bool:
    """Whether the value of a field with a secret's name may itself be a secret.

    A short value is not a secret, and a reference to a secret is not a secret.
    """
    is_password = name.lower().rstrip("s").endswith(_PASSWORDS)
    if is_password and isinstance(value, int) and not isinstance(value, bool):
        return len(str(value)) >= _LEAST_PASSWORD_LENGTH
    if not isinstance(value, str) or value.lower() in _NO_PASSWORDS:
        return False
    if name.lower().rstrip("s").endswith("credential") and value.startswith(("/", "~", "./")):
        return False  # The path of a file that holds the secrets.
    return _is_given(value, least=_LEAST_PASSWORD_LENGTH if is_password else _LEAST_LENGTH)


def secrets_in(fields: Mapping[str, object]) -> tuple[str, ...]:
    """Return a text about each field of a run spec that contains a credential.

    Each text names the path of the field, and does not show the value.
    """
    return tuple(dict.fromkeys(_found("", fields)))


def _found(path: str, value: object) -> Iterator[str]:
    name = ".".join(path.split(".")[-2:])
    if isinstance(value, Mapping):
        for key, inner in value.items():
            where = f"{path}.{key}" if path else str(key)
            if any(_forms_in(str(key))):
                yield f"{path}: a key contains a credential, and the log would store this key; {_WHERE_TO}"
            else:
                yield from _found(where, inner)
    elif not path.endswith("store.signing_key") and names_secret(name) and is_secret(name, value):
        yield f"{path}: has the name of a secret, and would be stored; {_where_to(path)}"
    elif isinstance(value, str):
        if any(_forms_in(value)):
            yield f"{path}: holds credentials, which would be stored; {_where_to(path)}"
    elif isinstance(value, Sequence):
        yield from _found_in_list(path, value)


def _found_in_list(path: str, values: Sequence[object]) -> Iterator[str]:
    """Yield the problems in a list. The list is a command with its options, or contains several values of one field."""
    name, before = ".".join(path.split(".")[-2:]), ""
    for number, value in enumerate(values):
        option, equals, given = str(value).partition("=") if isinstance(value, str) else ("", "", "")
        if equals and option.startswith("-") and names_secret(option) and is_secret(option, given):
            yield f"{path}: option {option} has the name of a secret, and would be stored; {_where_to(path)}"
        elif before.startswith("-") and "=" not in before and names_secret(before) and is_secret(before, value):
            yield f"{path}: option {before} has the name of a secret, and would be stored; {_where_to(path)}"
        elif names_secret(name) and is_secret(name, value):
            yield f"{path}.{number}: has the name of a secret, and would be stored; {_where_to(path)}"
        elif isinstance(value, str) and before.startswith("-") and any(_forms_in(f"{before} {value}")):
            yield f"{path}.{number}: holds credentials, which would be stored; {_where_to(path)}"
        else:
            yield from _found(f"{path}.{number}", value)
        before = value if isinstance(value, str) else ""


def _where_to(path: str) -> str:
    return next((fix for beginning, fix in _WHERE_TO_IN.items() if path.startswith(beginning)), _WHERE_TO)


def _is_given(value: object, *, least: int = _LEAST_LENGTH) -> bool:
    """Whether a value may itself be a secret, because it is a long enough text and not a reference to a secret."""
    if not isinstance(value, str) or _REFERENCE.fullmatch(value):
        return False
    return len(_INNER_REFERENCE.sub("", value)) >= least


def _is_random(text: str) -> bool:
    """Whether a text looks random: it mixes letters and digits, or upper and lower case, or is long."""
    kinds = [any(map(is_kind, text)) for is_kind in (str.islower, str.isupper, str.isdigit)]
    return len(_INNER_REFERENCE.sub("", text)) >= _LEAST_LENGTH and (sum(kinds) > 1 or len(text) >= 24)
