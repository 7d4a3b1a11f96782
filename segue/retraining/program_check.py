"""Whether slots can train and publish a program, as far as its files show. Nothing of it is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from segue.continuity.program_code import Source, script_of, sources_of
from segue.data.config import CONFIG_VARIABLE
from segue.errors import SpecError
from segue.retraining.spec import RetrainSpec
from segue.sessions import require_program
from segue.spec import ProgramSpec, RunSpec

_OF_FRAMEWORKS = frozenset({"SegueCallback", "commit_folder"})


def require_publishable(spec: RetrainSpec, *, folder: Path, source: str = "retrain.toml") -> tuple[str, ...]:
    """Check that the program of the slots, if they train one, has what a version of its model needs.

    Returns what is worth saying of it, in sentences. `folder` is where the program runs; only files of the user's are
    read, and what cannot be seen in them is not judged.

    Raises:
        ProgramError: there is no such program.
        SpecError: it does not track what is published, or what publishes it would train it.
    """
    program = RunSpec.parse(spec.run | {"run_id": spec.name}, source=source).program
    if program is None:
        return ()
    require_program(program.command)
    sources = list(sources_of(program.command, folder=folder))
    script = script_of(program.command, folder=folder)
    problems = [*_untracked(spec, sources), *_trains_again(spec, sources, script=script, folder=folder)]
    if problems:
        raise SpecError(source=source, problems=tuple(problems))
    return notes_on_files(program, folder=folder)


def notes_on_files(program: ProgramSpec, *, folder: Path) -> tuple[str, ...]:
    """A sentence where nothing in the files of a program can ask for the files of its run."""
    sources, script = list(sources_of(program.command, folder=folder)), script_of(program.command, folder=folder)
    if script is None or asks_for_files(sources):
        return ()
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    where = f"no file of the program ({script.name}{more}) asks for the files of its run"
    fix = f'read run.config["data"], or the file that {CONFIG_VARIABLE} names'
    return (f"{where}: unless a package does, it trains without them. Fix: {fix}.",)


class Tracked(NamedTuple):
    """What the calls of `track` in a program name."""

    names: tuple[str, ...]
    is_complete: bool
    """Whether these files have the session and such calls, and all of them write out the names."""


def tracked_by(sources: Sequence[Source]) -> Tracked:
    """The names under which a program tracks its objects."""
    calls = [call for source in sources for call in _calls(source.tree, "track") if not call.args]
    names = [each.arg for call in calls for each in call.keywords]
    is_complete = bool(calls) and None not in names and "session" in _words(sources)
    return Tracked(tuple(dict.fromkeys(filter(None, names))), is_complete)


def asks_for_files(sources: Sequence[Source]) -> bool:
    """Whether a program can ask for the files of its run: one that does names the config, and what it wants of it."""
    words = _words(sources)
    return bool(words & {"config", CONFIG_VARIABLE}) and bool(words & {"data", "data_frame"})


def _untracked(spec: RetrainSpec, sources: Sequence[Source]) -> Iterator[str]:
    wanted, tracked = spec.publish.component, tracked_by(sources)
    if tracked.is_complete and wanted not in tracked.names:
        there = ", ".join(tracked.names)
        fix = f"name one of these, or call run.track({wanted}=...)" if wanted.isidentifier() else "name one of these"
        yield f"publish.component: the program tracks {there}, and no {wanted!r}; {fix}"
    used = sorted(_OF_FRAMEWORKS & _words(sources))
    if used and not any(True for source in sources for _ in _calls(source.tree, "track")):
        where = f"its checkpoints hold the folder of a framework ({used[0]})"
        yield f"run.program: {where}, in which segue knows no weights; a version needs what run.track(model=...) names"


def _trains_again(spec: RetrainSpec, sources: Sequence[Source], *, script: Path | None, folder: Path) -> Iterator[str]:
    """Importing a script that is not guarded trains it, in the process that was to evaluate."""
    if all(_is_guarded(source.tree) for source in sources if source.file == script):
        return
    functions = {"publish.model": spec.publish.model, "publish.example": spec.publish.example}
    if spec.evaluation is not None:
        functions["evaluation.scores"] = spec.evaluation.scores
    for field, function in functions.items():
        module = (function or "").partition(":")[0]
        if module and any(each.file == script for each in sources_of(("python", "-m", module), folder=folder)):
            why = f"importing {module} runs {script.name if script is not None else 'the script'}, and so would train"
            yield f'{field}: {why}; put the loop into `if __name__ == "__main__":`, or the function into another module'


def _is_guarded(tree: ast.Module) -> bool:
    tests = (node.test for node in tree.body if isinstance(node, ast.If))
    return any("__name__" in {each.id for each in ast.walk(test) if isinstance(each, ast.Name)} for test in tests)


def _calls(tree: ast.Module, method: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node


def _words(sources: Sequence[Source]) -> set[str]:
    """Names, attributes, parameters and texts of these files."""
    return {word for source in sources for node in ast.walk(source.tree) for word in _words_of(node)}


def _words_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.alias(name=word):
            yield word
        case ast.keyword(arg=str(word)) | ast.Constant(value=str(word)):
            yield word
