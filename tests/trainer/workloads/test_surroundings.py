"""What a recipe's code reads by name while it runs: found in the code, read again, and never in plain text."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from segue.trainer.workloads.surroundings import machine, surroundings


def scaled(model):
    scale = float(os.environ.get("TRAIN_SCALE", "1"))
    token = os.getenv("API_TOKEN")
    return scale, token


def read(file):
    return Path("settings.json").read_text(), file


def taken(found):
    return {name: look() for name, look in found.items()}


def test_variables_that_functions_name_are_compared_by_hash_and_confidential_ones_are_left_out(monkeypatch):
    found = surroundings([scaled], [])
    monkeypatch.setenv("TRAIN_SCALE", "0.5")
    before = taken(found)
    monkeypatch.setenv("TRAIN_SCALE", "0.25")
    after = taken(found)
    assert [name for name in before if before[name] != after[name]] == ["environment variable TRAIN_SCALE"]
    assert "0.5" not in str(before)
    assert not [name for name in before if "TOKEN" in name]
    monkeypatch.delenv("TRAIN_SCALE")
    assert taken(found)["environment variable TRAIN_SCALE"] is None


def test_files_that_functions_name_or_objects_hold_are_compared_by_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    held = tmp_path / "table.csv"
    held.write_text("a")
    Path("settings.json").write_text("1")
    found = surroundings([read], [str(held), "no such file.txt"])
    before = taken(found)
    assert {name for name in before if name.startswith("file ")} == {"file settings.json", f"file {held}"}
    Path("settings.json").write_text("22")
    held.unlink()
    after = taken(found)
    assert before["file settings.json"] != after["file settings.json"]
    assert after[f"file {held}"] is None


def test_a_large_file_is_compared_by_its_size_and_both_ends(tmp_path):
    file = tmp_path / "large.bin"
    file.write_bytes(bytes(5 * 2**20))
    found = surroundings([], [str(file)])
    before = taken(found)[f"file {file}"]
    file.write_bytes(bytes(5 * 2**20 - 1) + b"x")
    assert taken(found)[f"file {file}"] != before


def test_global_settings_of_torch_are_compared():
    before = taken(surroundings([], []))
    torch.set_default_dtype(torch.float64)
    try:
        after = taken(surroundings([], []))
    finally:
        torch.set_default_dtype(torch.float32)
    assert [name for name in before if before[name] != after[name]] == ["setting torch.get_default_dtype()"]


def test_two_looks_at_one_machine_are_equal():
    assert machine() == machine()
