"""Finds out whether the process that a segment's command starts is an engine.

An engine receives SIGTERM itself. The module is pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePosixPath

ENGINES = ("prefect.engine", "prefect.flow_engine", "segue.flows.prefect_engine")
"""Modules of engines.

In an engine, a segment receives SIGTERM. Prefect's starter does not pass SIGTERM on to an engine.
"""
_SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")
_BECOME = ("bash", "zsh", "ksh")
"""Shells that replace themselves with the command if a script has only one simple command.

This behaviour was measured with bash 5.2. The shell dash does not replace itself.
"""
_PASS_ON = ("env", "exec", "nice", "ionice", "numactl", "tini", "dumb-init", "catatonit", "timeout")
"""Programs that replace themselves with their command, or that pass SIGTERM on to their command."""
_PYTHON = re.compile(r"python[\d.]*")
_ASSIGNMENT = re.compile(r"\w+=.*")
_RUNNER = re.compile(r"\bprefect\b.*\bflow-run\s+execute\b")
"""This pattern finds the command of Prefect's own starter, possibly with options between its words."""
_OPERATORS = frozenset("();<>|&")
"""Characters of shell operators.

If a command contains an operator, bash stays the parent process of the command. This behaviour was measured with bash
5.2.
"""
_ENDS = (";", "&&")
"""The operators that separate the commands of a script."""


def starts_runner(command: str) -> bool:
    """Whether this command is Prefect's own starter. The starter handles SIGTERM in its own way."""
    return _RUNNER.search(command) is not None


def starts_engine(command: str) -> bool | None:
    """Return True if SIGTERM to the process of this command reaches an engine, False if it does not, and None if this
    is unknown.
    """
    try:
        return _is_engine(shlex.split(command))
    except ValueError:  # A quote that is not closed.
        return None


def _is_engine(words: Sequence[str]) -> bool | None:
    words = list(words)
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words.pop(0)
    if not words:
        return None
    program = PurePosixPath(words[0]).name
    if program in _PASS_ON:
        found = (at for at, word in enumerate(words) if at and _is_known(PurePosixPath(word).name))
        at = next(found, None)
        return None if at is None else _is_engine(words[at:])
    if _PYTHON.fullmatch(program):
        module = next((name for option, name in pairwise(words) if option == "-m"), None)
        if module == "prefect":
            return False
        return True if module in ENGINES else None  # Other modules may start the engine: `python -m coverage run`.
    if program in _SHELLS:
        return _is_engine_of_script(_script_of(words), becomes_one=program in _BECOME)
    return False if program == "prefect" else None


def _is_known(program: str) -> bool:
    return program in (*_SHELLS, *_PASS_ON, "prefect") or _PYTHON.fullmatch(program) is not None


def _script_of(words: Sequence[str]) -> str | None:
    """Return the script in the arguments of a shell. Return None if the script is in a file."""
    return next((script for option, script in pairwise(words) if re.fullmatch(r"-[a-z]*c", option)), None)


def _is_engine_of_script(script: str | None, *, becomes_one: bool) -> bool | None:
    """Whether the script's last command replaces the shell with an engine.

    If it does not, the shell keeps the signal.
    """
    commands = _commands(script) if script is not None else []
    if not commands:
        return None
    last = commands[-1]
    is_plain = not any(set(word) <= _OPERATORS for word in last)
    if "||" in last:  # The words after it are for the case that the command could not be started.
        last = last[: last.index("||")] or [""]
    if last[0] == "exec" and not {"|", "&", "|&", "(", ")"} & set(last):
        return _is_engine(last[1:])
    found = _is_engine(last)
    if not found:
        return found
    if not is_plain:
        return False
    # If other commands come first, the result depends on the shell and its version.
    return True if becomes_one and len(commands) == 1 else None


def _commands(script: str) -> list[list[str]]:
    """Return the words of each command of a script."""
    lexer = shlex.shlex(script.replace("\n", " ; "), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in _ENDS:
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]
