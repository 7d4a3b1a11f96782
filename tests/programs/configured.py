"""A training script with a config: it notes what it was given, here and in a process that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

import segue

IN_A_PROCESS = "import json, segue; print(json.dumps(segue.session().config))"

run = segue.session()
config = run.config
run.config["lr"] = 100.0  # A copy: this changes nothing.
given = subprocess.check_output([sys.executable, "-c", IN_A_PROCESS], text=True)
Path(f"given{os.environ.get('RANK', '')}.json").write_text(
    json.dumps([config, json.loads(given), run.config, "SEGUE_CONFIG" in os.environ])
)
torch.manual_seed(1)
texts = [Path(path).read_text() for path in config.get("data", [])]
scale = float(sum(map(len, texts)) + 1)
model = nn.Linear(4, 1)
decay = config.get("weight_decay", 0.0)
optimizer = torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.01), weight_decay=decay)
run.track(model=model, optimizer=optimizer)
for _ in run.steps(40):
    loss = model(torch.randn(8, 4)).square().mean() / scale
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(config.get("pause_seconds", 0.0))
    run.report(loss=loss)
