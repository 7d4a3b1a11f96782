"""Every code block of the pages: python runs, run specs are valid, commands are shell, commands marked so run."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import segue
from segue.clock import SystemClock
from segue.continuity.live_tree import put, tree_of
from segue.errors import SpecError
from segue.records import Notice
from tests.docs import setups
from tests.docs.blocks import PAGES, blocks

CHECKED = {"python", "toml", "json", "yaml", "console", "sh"}
OUTPUT = {"text", "diff"}
"""What is no code: output, and changes, which tests/examples compares with the examples themselves."""
MOST_NOT_RUN = 1
WHOLE_FRAMEWORKS = [
    pytest.mark.matrix,
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]
"""For the page about them: their imports take longer than five seconds; Lightning uses what torch has deprecated."""
LEAST = {"run_id": "page", "steps": 100}


def with_blocks(language: str) -> list[Any]:
    found = [page for page in PAGES if any(blocks(page, language=language))]
    return [
        pytest.param(page, id=page.name, marks=WHOLE_FRAMEWORKS if page.name == "frameworks.md" else [])
        for page in found
    ]


def each(language: str) -> list[Any]:
    return [pytest.param(block, id=block.place) for block in blocks(language=language)]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """A current folder from which python imports, and which it forgets afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


def test_every_block_names_its_language():
    unknown = [f"{block.place}: {block.language!r}" for block in blocks() if block.language not in CHECKED | OUTPUT]
    assert unknown == []


def test_a_test_comment_says_one_of_the_things_that_it_can_say():
    wrong = [
        block.place
        for block in blocks()
        if block.comment and not (block.is_run or block.setup or block.read_as or block.why_not_run)
    ]
    assert wrong == []


def test_few_blocks_are_not_run_and_each_says_why():
    left_out = [block for block in blocks() if block.comment.startswith("not run")]
    assert all(block.why_not_run and len(block.why_not_run) > 20 for block in left_out)
    assert len(left_out) <= MOST_NOT_RUN, [block.place for block in left_out]


@pytest.mark.matrix
@pytest.mark.parametrize("page", with_blocks("python"))
def test_the_python_of_a_page_runs_from_top_to_bottom(page, folder, request):
    namespace: dict[str, Any] = {"__name__": "page", "segue": segue, "torch": torch}
    for block in blocks(page, language="python"):
        if block.setup is not None:
            namespace |= getattr(setups, block.setup)(folder, request)
        if block.file is not None:
            (folder / block.file).write_text(block.text)
        # So that a traceback has the page's own lines.
        code = compile("\n" * (block.line - 1) + block.text, block.page, "exec")
        if block.why_not_run is None:
            namespace.pop("build", None)
            exec(code, namespace)
            if "build" in namespace:
                use_all_of(namespace["build"](namespace.get("config", {})))


def use_all_of(recipe: segue.Recipe) -> None:
    """Call each function of a recipe once, as a step and a notice do."""
    batch = next(iter(recipe.data))
    if recipe.step is not None:
        recipe.step(recipe.model, batch, recipe.optimizer)
    else:
        recipe.loss(recipe.model, batch).backward()
        recipe.optimizer.step()
    with torch.no_grad():
        metrics = [] if recipe.evaluate is None else [float(recipe.evaluate(recipe.model))]
    for name, scheduler in recipe.schedulers.items():
        scheduler.step(*(metrics if name in recipe.by_metric else []))
    if recipe.after_step is not None:
        recipe.after_step(1)
    if recipe.on_notice is not None:
        recipe.on_notice(Notice(kind="sigterm", received_at=SystemClock().now(), grace_seconds=25.0))
    for item in recipe.extra.values():
        put(item, tree_of(item, path="extra"))


@pytest.mark.parametrize("block", each("toml"))
def test_a_toml_block_is_a_run_spec_or_a_part_of_one(block, tmp_path):
    given = tomllib.loads(block.text)
    assert given, "an empty block"
    if block.read_as is not None:
        read_as(block.read_as, block.text, tmp_path)
        return
    least = LEAST if "program" in given else LEAST | {"recipe": "train:build"}
    segue.RunSpec.parse(least | given, source=block.place)


def read_as(path: str, text: str, folder: Path) -> Any:
    """Read a file with this text by the class at module:Class."""
    module, _, name = path.partition(":")
    (folder / "block.toml").write_text(text)
    return getattr(importlib.import_module(module), name).from_toml(folder / "block.toml")


def test_a_toml_block_of_another_kind_is_read_by_the_class_that_its_comment_names(tmp_path):
    text = 'run_id = "a"\nrecipe = "train:build"\nsteps = 3\n'
    assert read_as("segue.spec:RunSpec", text, tmp_path).steps == 3
    with pytest.raises(SpecError, match="stepz"):
        read_as("segue.spec:RunSpec", text + "stepz = 4\n", tmp_path)


@pytest.mark.parametrize("block", each("json"))
def test_a_json_block_is_json(block):
    assert json.loads(block.text)


@pytest.mark.parametrize("block", each("yaml"))
def test_a_yaml_block_is_yaml(block):
    assert yaml.safe_load(block.text)


@pytest.mark.parametrize("block", [*each("console"), *each("sh")])
def test_commands_are_valid_shell(block):
    commands = block.commands if block.language == "console" else [block.text]
    assert commands, "a console block shows its commands after `$ `"
    for command in commands:
        checked = subprocess.run(["sh", "-n"], input=command, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, f"{command}: {checked.stderr}"


def pages_that_run() -> list[Any]:
    found = [page for page in PAGES if any(b.is_run for b in blocks(page))]
    return [
        pytest.param(p, id=p.name, marks=pytest.mark.soak if p.name in ("recipes.md", "quick-start.md") else [])
        for p in found
    ]


@pytest.mark.matrix
@pytest.mark.prefect
@pytest.mark.parametrize("page", pages_that_run())
def test_the_commands_of_a_page_run_in_their_order(page, tmp_path):
    """With the page's own files beside them, and no Prefect but the one that they start."""
    for block in blocks(page):
        if block.language in ("python", "toml") and block.file is not None:
            (tmp_path / block.file).write_text(block.text)
        if block.is_run:
            for command in block.commands:
                succeed(command, tmp_path)


def succeed(command: str, folder: Path) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=own, capture_output=True, text=True, timeout=400, check=False
    )
    assert ended.returncode == 0, f"$ {command}\n{ended.stdout}{ended.stderr}"


def test_the_setups_are_those_that_the_pages_use():
    used = {block.setup for block in blocks() if block.setup is not None}
    functions = inspect.getmembers(setups, lambda item: inspect.isfunction(item) and item.__module__ == setups.__name__)
    assert {name for name, _ in functions if not name.startswith("_")} == used


def test_a_block_is_found_with_its_line_its_file_and_its_comment(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n<!-- test: setup=some -->\n```python\n# train.py\nx = 1\n```\n\n```console\n$ a \\\n  b\nc\n```\n"
    )
    (first, second) = blocks(page)
    assert (first.line, first.file, first.setup, first.language) == (5, "train.py", "some", "python")
    assert (second.commands, second.comment) == (["a    b"], "")
    assert re.match(r"# train", first.text)
