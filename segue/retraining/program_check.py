"""Checks from a program's files, without running them, whether slots can train and publish the program."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from segue.continuity.program_code import SourceFile, script_of, sources_of
from segue.data.config import CONFIG_VARIABLE
from segue.errors import SpecError
from segue.hosting import require_program
from segue.retraining.spec import RetrainSpec
from segue.spec import ProgramSpec, RunSpec

_OF_FRAMEWORKS = frozenset({"SegueCallback", "commit_folder"})


def require_publishable(spec: RetrainSpec, *, folder: Path, source: str = "retrain.toml") -> tuple[str, ...]:
    """Check that the program of the slots tracks the objects that a version of its model needs.

    Return remarks about the program, in sentences. If the slots train no program, do nothing. The program runs in
    `folder`, and the function reads only the user's own files. The function reports nothing about a requirement if the
    files do not show whether it is met.

    Raises:
        ProgramError: the program does not exist.
        SpecError: the program does not track the component to publish.
    """
    program = RunSpec.parse(spec.run | {"run_id": spec.name}, source=source).program
    if program is None:
        return ()
    require_program(program.command)
    sources = list(sources_of(program.command, folder=folder))
    problems = tuple(_untracked(spec, sources))
    if problems:
        raise SpecError(source=source, problems=problems)
    return notes_on_files(program, folder=folder)


def notes_on_files(program: ProgramSpec, *, folder: Path) -> tuple[str, ...]:
    """Return a remark if no code in a program's files can read the list of files of its run. Otherwise return
    nothing.
    """
    sources, script = list(sources_of(program.command, folder=folder)), script_of(program.command, folder=folder)
    if script is None or asks_for_files(sources):
        return ()
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    where = f"no file of the program ({script.name}{more}) asks for the files of its run"
    fix = f'read run.config["data"], or the file that {CONFIG_VARIABLE} names'
    return (f"{where}: it trains without them, unless an installed package reads them. Fix: {fix}.",)


class Tracked(NamedTuple):
    """The names in a program's calls of `track`."""

    names: tuple[str, ...]
    is_complete: bool
    """Whether the names are all names of the program.

    The value is True if only these files use the sessions, and if each call of `track` contains its names literally.
    """


def tracked_by(sources: Sequence[SourceFile]) -> Tracked:
    """Return the names under which a program tracks its objects."""
    nodes = [node for source in sources for node in ast.walk(source.tree)]
    sessions = {name for node in nodes for name in _sessions(node)}
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    uses = sum(isinstance(node, ast.Attribute) and node.attr == "track" for node in nodes)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    tracks = [call for call in calls if _is_method_of(call.func, sessions, "track")]
    names = [each.arg for call in tracks for each in call.keywords]
    is_handed_on = any(_is_given(sessions, call) and _called(call) not in own for call in calls)
    is_complete = bool(tracks) and uses == len(tracks) and None not in names and not is_handed_on
    return Tracked(tuple(dict.fromkeys(filter(None, names))), is_complete)


def _sessions(node: ast.AST) -> Iterator[str]:
    """Return the variables to which a statement assigns a session."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if _called(call) == "session":
            yield name
        case ast.withitem(context_expr=ast.Call() as call, optional_vars=ast.Name(id=name)):
            if _called(call) == "session":
                yield name


def _called(call: ast.Call) -> str:
    """Return the last name of the expression that the code calls."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_method_of(function: ast.expr, owners: set[str], method: str) -> bool:
    match function:
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return name == method and owner in owners
    return False


def _is_given(names: set[str], call: ast.Call) -> bool:
    """Whether one of these variables is an argument of a call."""
    given = (*call.args, *(each.value for each in call.keywords))
    return any(isinstance(each, ast.Name) and each.id in names for each in given)


def asks_for_files(sources: Sequence[SourceFile]) -> bool:
    """Whether a program can read the list of files of its run. The result is True if the source code of the program
    names the config and the entry `data`.
    """
    words = _words(sources)
    return bool(words & {"config", CONFIG_VARIABLE}) and bool(words & {"data", "data_frame"})


def _untracked(spec: RetrainSpec, sources: Sequence[SourceFile]) -> Iterator[str]:
    wanted, tracked = spec.publish.component, tracked_by(sources)
    if tracked.is_complete and wanted not in tracked.names:
        there = ", ".join(tracked.names)
        fix = f"name one of these, or call run.track({wanted}=...)" if wanted.isidentifier() else "name one of these"
        yield f"publish.component: the program tracks {there}, and no {wanted!r}; {fix}"
    used = sorted(_OF_FRAMEWORKS & _words(sources))
    if used and not any(True for source in sources for _ in _calls(source.tree, "track")):
        where = f"its checkpoints hold the folder of a framework ({used[0]})"
        yield f"run.program: {where}, in which segue cannot find weights; a version needs run.track(model=...)"


def _calls(tree: ast.Module, method: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node


def _words(sources: Sequence[SourceFile]) -> set[str]:
    """Return the names, attributes, parameters and strings in these files."""
    return {word for source in sources for node in ast.walk(source.tree) for word in _words_of(node)}


def _words_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.alias(name=word):
            yield word
        case ast.keyword(arg=str(word)) | ast.Constant(value=str(word)):
            yield word
