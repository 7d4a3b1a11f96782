"""Writes the README.md of an export, which explains each file and shows how to load the files without segue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from segue.markup import Markup, code, table

_INTRODUCTION = """\
# A segue checkpoint as plain files

One checkpoint of one training run: everything that is needed to continue from it, in files that need no segue.
Every byte of the checkpoint was verified against its checksum when these files were written.

"""
_COLUMNS = ("file", "holds")

_NEXT_TO_STATE = {
    "data_position.json": "step, samples seen, epoch and seed, and the rule for the order of the samples",
    "config.json": "the recipe's path, its config, the seed and the goal in steps; null if the log was damaged",
    "train_state.json": "step, epoch, metric, environment, parent, attempt and verdict, and the version of segue",
    "loss_curve.parquet": "the steps up to here, each once; `curve_gaps` in train_state.json names incomplete "
    "attempts, and `curve_damage` names stored parts that are lost or differ from the checkpoint's manifest",
}

EPOCH_NAMES = {"loss_curve.parquet": "metrics.csv", "config.json": "config.yaml"}
"""Maps file names in other formats to the file names in the format "epoch"."""

_FOLDERS = {
    "folder": "the checkpoint as the training framework wrote it",
    "best": "the files of the model that the framework calls its best",
}

_MEANINGS = {
    "model": "parameters and buffers, by the names that the model gives them",
    "modes": "train or eval of each module (`training`), which parameters are trained (`requires_grad`)",
    "buffers": "buffers that the model's `state_dict()` leaves out, by their names",
    "optimizer": "`optimizer.state_dict()`",
    "scheduler": "`scheduler.state_dict()`",
    "scaler": "the gradient scaler's `state_dict()`",
    "rng.torch": "the stream of torch on the CPU",
    "rng.python": "the stream of the module `random`",
    "rng.numpy": "NumPy's legacy global stream",
    "rng.cuda": "the streams of the accelerators, in order",
}

_TORCH_HEAD = """\

All files load with `weights_only=True`. To make this possible, segue converted arrays to tensors, NumPy's scalars to
plain numbers, and empty bytes to a
bytearray. The random streams are loaded last, so that nothing draws from them in between.

```python
import random

import numpy as np
import torch


def component(name):
    return torch.load(f"{name}.pt", weights_only=True)


"""

_SAFETENSORS_HEAD = """\

`model.safetensors` has the model's own names. Every component also has a JSON skeleton: its tree of dicts, lists and
numbers, in which a dict of one key that begins with `$` encodes what JSON has no type for. `$tensor`, `$tensors` and
`$array` name tensors of the safetensors file next to it (without tensors there is none); `component` below decodes
them all (`$object` and `$frame` become dicts, of attributes and of columns; `$constant` becomes text or numbers).
Values of a model's state that are not tensors (versions of modules, `get_extra_state`) are only in `model.json`. The
random streams are loaded last, so that nothing draws from them in between.

```python
import array
import base64
import collections
import json
import pathlib
import random

import numpy as np
import torch
from safetensors.torch import load_file


def component(name):
    file = pathlib.Path(f"{name}.safetensors")
    tensors = load_file(file) if file.exists() else {}

    def column(parts):
        kind, content = parts[0], tree(parts[1])
        return content.view(kind) if isinstance(content, np.ndarray) and np.dtype(kind).kind in "mM" else content

    def tree(node):
        if isinstance(node, list):
            return [tree(item) for item in node]
        if not isinstance(node, dict):
            return node
        tag, value = next(iter(node.items()), ("", None))
        if len(node) != 1 or not tag.startswith("$"):
            return {key: tree(item) for key, item in node.items()}
        kinds = {
            "$tensor": lambda: tensors[value],
            "$tensors": lambda: {key: tensors[f"{value[0]}.{key}"] for key in value[1]},
            "$array": lambda: tensors[value].numpy(),
            "$scalar": lambda: np.dtype(value[0]).type(tree(value[1])),
            "$moment": lambda: np.array([value[1]]).view(value[0])[0],
            "$moments": lambda: tensors[value[1]].numpy().view(value[0]),
            "$constant": lambda: value[1],
            "$float": lambda: float(value),
            "$bytes": lambda: base64.b64decode(value),
            "$tuple": lambda: tuple(tree(item) for item in value),
            "$set": lambda: {tree(item) for item in value},
            "$frozenset": lambda: frozenset(tree(value)),
            "$counter": lambda: collections.Counter(dict(tree(value))),
            "$deque": lambda: collections.deque(tree(value[1]), value[0]),
            "$bytearray": lambda: bytearray(base64.b64decode(value)),
            "$numbers": lambda: array.array(value[0], base64.b64decode(value[1])),
            "$complex": lambda: complex(value),
            "$items": lambda: {tree(key): tree(item) for key, item in value},
            "$object": lambda: {key: tree(item) for key, item in value[1]},
            "$frame": lambda: {tree(label): column(each) for label, each in zip(value[0], value[2])},
            "$series": lambda: column(value[2]),
            "$pairs": lambda: {key: tree(item) for key, item in value},
        }
        return kinds[tag]()

    return tree(json.loads(pathlib.Path(f"{name}.json").read_text(encoding="utf-8")))


"""

_MODES = """\
modes = component("modes")
for name, module in model.named_modules():
    module.training = modes["training"][name]
for name, parameter in model.named_parameters():
    parameter.requires_grad_(modes["requires_grad"][name])
"""

_BUFFERS = """\
for name, buffer in component("buffers").items():
    setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], buffer)
"""

_PYTHON_STREAM = """\
stream = component("rng.python")
random.setstate((stream["version"], tuple(int(word) for word in stream["words"]), stream["gauss"]))
"""

_NUMPY_STREAM = """\
stream = component("rng.numpy")
stream["state"]["key"] = np.asarray(stream["state"]["key"])
np.random.set_state(stream)
"""

_LINES = {
    "modes": _MODES,
    "buffers": _BUFFERS,
    "rng.torch": 'torch.set_rng_state(component("rng.torch"))\n',
    "rng.python": _PYTHON_STREAM,
    "rng.numpy": _NUMPY_STREAM,
    "rng.cuda": 'torch.cuda.set_rng_state_all(component("rng.cuda"))\n',
}


def readme(
    files: Mapping[str, tuple[str, ...]],
    *,
    as_torch: bool,
    folders: Sequence[str] = (),
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the text of the README for these components and folders.

    `files` contains the file names of each component. `renamed` maps some file names to new names.
    """
    rows = [(Markup(", ".join(map(code, names))), _meaning(name)) for name, names in files.items()]
    rows += [(code(f"{name}/"), _FOLDERS[name]) for name in folders]
    rows += [(code(renamed.get(name, name)), meaning) for name, meaning in _NEXT_TO_STATE.items()]
    lines = [_loading(name, names[0].rpartition(".")[0], as_torch=as_torch) for name, names in files.items()]
    head = _TORCH_HEAD if as_torch else _SAFETENSORS_HEAD
    return _INTRODUCTION + table(_COLUMNS, rows) + "\n" + head + "".join(lines) + "```\n"


def _meaning(component: str) -> str:
    known = _MEANINGS.get(component)
    return known or f"`state_dict()` of the object with the name {component.removeprefix('extra.')!r} in the recipe"


def _loading(component: str, stem: str, *, as_torch: bool) -> str:
    if component in _LINES:
        return _LINES[component]
    if component == "model" and not as_torch:
        return 'model.load_state_dict(load_file("model.safetensors"))\n'
    field, _, name = component.partition(".")
    owner = f"{field}[{name!r}]" if name and field in ("extra", "optimizer", "scheduler") else component
    return f'{owner}.load_state_dict(component("{stem}"))\n'


_DCP_FILES = (Markup("`.metadata`, `*.distcp`"), "the state, in the format of torch.distributed.checkpoint")

_DCP = """\

Components: COMPONENTS.

A model and an optimizer on any number of ranks load their own slices:

```python
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

model_state, optimizer_state = get_state_dict(model, optimizer)
state = {"model": model_state, "optimizer": optimizer_state}
dcp.load(state, checkpoint_id="this folder")
set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
```

The optimizer's parameters have the model's names, as `get_state_dict` gives them. If the checkpoint does not have the
names, for example the checkpoint of a program, the parameters have numbers: then load into `optimizer.state_dict()`.
`dcp.load` unpickles plain values of the folder; for weights of unknown origin, use a format without pickle.
"""


def readme_of_dcp(components: Sequence[str]) -> str:
    """Return the README for a folder of torch.distributed.checkpoint."""
    rows = [*((code(name), meaning) for name, meaning in _NEXT_TO_STATE.items()), _DCP_FILES]
    names = ", ".join(map(code, components))
    return _INTRODUCTION + table(_COLUMNS, rows) + "\n" + _DCP.replace("COMPONENTS", names)
