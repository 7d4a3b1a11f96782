"""What code blocks of the pages build upon: the names that a test comment `setup=NAME` puts into their namespace."""

from __future__ import annotations

import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import segue
from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.retraining.model_record import Candidate
from segue.retraining.models import ModelsLog
from segue.retraining.versions.version_files import PROGRAM, WEIGHTS, program_bytes, put_artifact, weights_bytes
from segue.spec import RunSpec
from segue.stores import open_store

Names = dict[str, Any]


def parts(folder: Path, request: pytest.FixtureRequest) -> Names:
    """What recipes that show one further field have in common."""
    import requests

    return {
        "model_and_data": _model_and_data,
        "held_out": _samples(64)[:],
        "ReduceLROnPlateau": ReduceLROnPlateau,
        "AveragedModel": AveragedModel,
        "get_ema_multi_avg_fn": get_ema_multi_avg_fn,
        "requests": requests,
        "HOOK": _hook(request),
    }


def gan(folder: Path, request: pytest.FixtureRequest) -> Names:
    """Two networks in one module, and batches of real samples."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.critic = nn.Linear(64, 8), nn.Linear(8, 1)

    samples = torch.randn(64, 8)
    return {"Pair": Pair, "loader": DataLoader(samples, batch_size=16), "StepLR": StepLR}


def own_loop(folder: Path, request: pytest.FixtureRequest) -> Names:
    """What a script has before its training loop, and the session of a program."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def one_step(model: nn.Module, optimizer: Any, x: Any = None, y: Any = None) -> torch.Tensor:
        x, y = (torch.randn(4, 8), torch.randn(4, 1)) if x is None else (x, y)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = segue.session()
    run.track(model=model, optimizer=optimizer)
    return {
        "run": run,
        "model": model,
        "optimizer": optimizer,
        "scheduler": StepLR(optimizer, step_size=1),
        "loader": DataLoader(_samples(64), batch_size=16, shuffle=True),
        "test_loader": DataLoader(_samples(64), batch_size=64),
        "max_steps": 20,
        "epochs": 2,
        "steps_per_epoch": 4,
        "one_step": one_step,
        "test": lambda model, loader: None,
        "evaluate": lambda model: nn.functional.mse_loss(model(torch.ones(4, 8)), torch.ones(4, 1)).item(),
    }


def engine(folder: Path, request: pytest.FixtureRequest) -> Names:
    """A framework that writes its own checkpoint folder."""

    class Engine:
        def __init__(self) -> None:
            self.model = nn.Linear(2, 1)

        def step(self) -> float:
            return self.model(torch.ones(2)).item()

        def save_checkpoint(self, name: str) -> None:
            Path(name).mkdir(exist_ok=True)
            torch.save(self.model.state_dict(), Path(name) / "model.pt")

        def load_checkpoint(self, name: str) -> None:
            self.model.load_state_dict(torch.load(Path(name) / "model.pt", weights_only=True))

    return {"engine": Engine(), "max_steps": 5}


def hugging_face(folder: Path, request: pytest.FixtureRequest) -> Names:
    """A tiny model for the Trainer, its arguments, and rows with a pattern."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from tests.programs.huggingface import Rows

    shape = {"vocab_size": 20, "n_positions": 12, "n_embd": 16, "n_layer": 1, "n_head": 2}
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    return {
        "Trainer": Trainer,
        "model": GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0)),
        "arguments": TrainingArguments(output_dir=str(folder / "out"), num_train_epochs=1, **quiet),
        "rows": Rows(),
    }


def lightning_module(folder: Path, request: pytest.FixtureRequest) -> Names:
    """A LightningModule and its loader, with everything off that the page does not show."""
    import lightning

    from tests.programs.lightning_module import Module, Noisy

    class Trained(Module):
        validation_step = lightning.LightningModule.validation_step  # As in a module without one.

    quiet = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = partial(lightning.Trainer, enable_model_summary=False, **quiet)
    named = type("lightning", (), {"Trainer": staticmethod(trainer)})
    loader = DataLoader(Noisy(), batch_size=6, shuffle=True)
    return {"lightning": named, "model": Trained(hang_at=-1), "loader": loader}


def nightly_run(folder: Path, request: pytest.FixtureRequest) -> Names:
    """A finished run `nightly` in the default store of the folder."""
    spec = RunSpec.parse(
        {
            "run_id": "nightly",
            "recipe": "segue.testing.recipes:tiny",
            "steps": 20,
            "threads": 1,
            "store": {"url": str(folder / ".segue/store")},
            "checkpoints": {"every_steps": 10},
            "continuity": {"rehearsal": "off"},
        }
    )
    runlog = open_run(spec, clock=SystemClock())
    request.getfixturevalue("fork_server").run_attempt(runlog, spec)
    return {}


def data_files(folder: Path, request: pytest.FixtureRequest) -> Names:
    """Parquet files with the columns that the page names, as a segment gives them to the recipe."""
    import pandas as pd

    paths = [str(folder / f"2026-{month}.parquet") for month in ("01", "02")]
    for path in paths:
        values = torch.linspace(0, 1, 64).numpy()
        pd.DataFrame({"distance": values, "delay": 2 * values}).to_parquet(path)
    return {"config": {"data": paths}}


def _samples(count: int) -> TensorDataset:
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(7))
    return TensorDataset(x, x.sum(dim=1, keepdim=True))


def _model_and_data(config: dict[str, Any]) -> Names:
    model = nn.Linear(8, 1)
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
        "data": DataLoader(_samples(64), batch_size=16, shuffle=True),
        "loss": lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
    }


def _hook(request: pytest.FixtureRequest) -> str:
    """The address of a web hook that answers each message with 200."""

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *facts: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    request.addfinalizer(stop)
    return f"http://127.0.0.1:{server.server_port}/"


def retraining(folder: Path, request: pytest.FixtureRequest) -> Names:
    """The user's own network, and what turns rows of a frame into its inputs and targets."""

    def column(name: str) -> Any:
        return lambda frame: torch.tensor(frame[[name]].to_numpy(), dtype=torch.float32)

    return data_files(folder, request) | {
        "Net": lambda width: nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, 1)),
        "inputs": column("distance"),
        "delays": column("delay"),
        "mse": nn.functional.mse_loss,
        "DataLoader": DataLoader,
        "TensorDataset": TensorDataset,
    }


def published(folder: Path, request: pytest.FixtureRequest) -> Names:
    """A model `flights` in the store `models` of the folder, with a version in service that has a program."""
    store, net = open_store(folder / "models"), nn.Linear(1, 1)
    store.check()
    program = program_bytes(net.eval(), (torch.zeros(2, 1),))
    version = Candidate(
        slot=SystemClock().now(),
        run_id="flights-20260101t0600",
        step=20,
        attempt_id="seg000-a1-e1",
        weights=put_artifact(store, "flights", WEIGHTS, weights_bytes(net.state_dict(), component="model")),
        program=put_artifact(store, "flights", PROGRAM, program),
        is_promoted=True,
        why="no model was in service",
    )
    ModelsLog(store, "flights").add(version)
    return {}
