"""The world at the start of an attempt: modules as a new process loads them, environment, files, and global flags."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from benchmarks.continuity.blind.cases import Case, Moment
from segue.trainer.workloads import opened_files

_SCRIPTS = "benchmarks.continuity.scripts"


@contextmanager
def new_world(case: Case, scratch: Path, *, attempt: int) -> Iterator[None]:
    """A `with` block that begins like a new process on a new machine, and leaves nothing behind.

    The temporary folder is empty, the scripts' modules are loaded again, and global flags have their defaults.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    environment, folder = dict(os.environ), tempfile.tempdir
    # The rehearsal's process inherits the environment alone.
    tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
    _forget_scripts()
    with (
        _torch_as_it_was(),
        mock.patch.multiple(opened_files, _opened={}, _alike=Counter()),
    ):
        try:
            # No attempt can depend on what the one before drew.
            random.seed()
            np.random.seed(None)
            torch.seed()
            if case.world is not None:
                case.world(Moment(attempt=attempt, folder=scratch))
            yield
        finally:
            tempfile.tempdir = folder
            os.environ.clear()
            os.environ.update(environment)
            _forget_scripts()


def _forget_scripts() -> None:
    for name in [name for name in sys.modules if name.startswith(f"{_SCRIPTS}.")]:
        del sys.modules[name]
        # An import takes a module from its package, too.
        vars(sys.modules[_SCRIPTS]).pop(name.rpartition(".")[2], None)


@contextmanager
def _torch_as_it_was() -> Iterator[None]:
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    is_deterministic, has_mkldnn = torch.are_deterministic_algorithms_enabled(), torch.backends.mkldnn.enabled
    threads, has_grad = torch.get_num_threads(), torch.is_grad_enabled()
    is_autocast, autocast_dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(is_deterministic)
        torch.backends.mkldnn.enabled = has_mkldnn
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)
        torch.set_grad_enabled(has_grad)
        torch.set_autocast_enabled("cpu", is_autocast)
        torch.set_autocast_dtype("cpu", autocast_dtype)
