"""What the record of an environment says about its accelerator, and what the record of a processor does not."""

from __future__ import annotations

import json

import pytest
import torch

from segue.continuity.verdict import judge
from segue.records import Environment, VerdictKind
from segue.trainer.process.environment import accelerator_facts, device_name, driver_version, environment_of
from tests.continuity.test_another_device import ON_GPU, STEPS
from tests.continuity.test_verdict import row

CPU = torch.device("cpu")
GPU = Environment(
    torch="2.13.0",
    device="NVIDIA H100",
    instruction_set="AVX2",
    threads=1,
    device_processors=132,
    driver="550.54.15",
    libraries="CUDA 12.8, cuDNN 91002, NCCL 2.27.3",
    reduced_precision="TF32 convolutions",
)


def test_the_record_of_a_processor_is_as_it_was_before_accelerators_had_one():
    assert (device_name(CPU), accelerator_facts(CPU)) == ("cpu", {})
    written = json.loads(environment_of(CPU).model_dump_json())
    known = {"torch", "python", "device", "instruction_set", "processor", "threads", "world_size", "arithmetic"}
    assert written.keys() - {"packages"} == known


def test_the_record_of_an_accelerator_comes_back_and_names_what_differs():
    assert Environment.model_validate_json(GPU.model_dump_json()) == GPU
    other = GPU.model_copy(update={"driver": "560.28.03", "reduced_precision": "", "kernel_choice": "x"})
    assert GPU.differs_from(other) == ("driver", "reduced_precision", "kernel_choice")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.60 GCC version:  gcc 11.2.0", "525.60"),
        ("nothing of the kind", ""),
    ],
)
def test_the_version_of_the_driver_is_read_from_its_module(tmp_path, text, version):
    (tmp_path / "version").write_text(text)
    assert driver_version(tmp_path / "version") == version
    assert driver_version(tmp_path / "absent") == ""


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        (("device_processors",), VerdictKind.UNVERIFIED),
        (("driver",), VerdictKind.BROKEN),
        (("reduced_precision",), VerdictKind.UNVERIFIED),
    ],
)
def test_a_part_of_a_device_is_another_device_and_another_driver_is_not(changes, kind):
    witness = [row(step) for step in STEPS]
    replay = [*witness[:-1], witness[-1].model_copy(update={"loss": 0.51})]
    verdict = judge(committed=ON_GPU, restored=ON_GPU, witness=witness, replay=replay, environment_changes=changes)
    assert verdict.kind is kind
