"""A loop whose state is a folder that it writes and reads itself, as a framework would."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

import segue


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--pause-seconds", type=float, default=0.0)
    parser.add_argument("--never-writes", action="store_true")
    parser.add_argument("--best-until", type=int, default=-1, help="The best model is the newest, until this step.")
    parser.add_argument("--folder", default="state")
    parser.add_argument("--save-to", default="")
    options = parser.parse_args()
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    folder = Path(options.folder)
    run = segue.session()
    run.measure(model=model, optimizer=optimizer)
    restored = run.restore_folder(folder)
    if restored is not None:
        assert json.loads((restored / "parts/notes.json").read_text()) == {"step": run.step}
        assert (restored / "parts/empty").read_bytes() == b""
        state = torch.load(restored / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for step in run.steps(options.steps):
        while step == options.hang_at:
            time.sleep(1)
        time.sleep(options.pause_seconds)
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.report(loss=loss)
        if run.should_save and not options.never_writes:
            (folder / "parts").mkdir(parents=True, exist_ok=True)
            (folder / "parts/notes.json").write_text(json.dumps({"step": step + 1}))
            (folder / "parts/empty").touch()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
            if step < options.best_until:
                torch.save(model.state_dict(), folder / "parts/best.pt")
            has_best = (folder / "parts/best.pt").exists()
            run.commit_folder(folder, best={"model.pt": "parts/best.pt"} if has_best else None)
    if options.save_to:
        torch.save(model.state_dict(), options.save_to)


if __name__ == "__main__":
    main()
