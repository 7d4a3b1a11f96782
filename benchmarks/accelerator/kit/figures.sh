#!/usr/bin/env bash
# The figures: saves of a GPT beside its peers, staging, locking of pages, and drills on the device.
. benchmarks/accelerator/kit/setup.sh
export SEGUE_TRACE=$OUT/trace.json
part "${LIMIT:-150}" peers.log python3 -m benchmarks.accelerator.peers --seconds 50 --json "$OUT/peers.json" \
    --only "${PEERS:-bare,segue_nosave,segue,segue_overlapped,torch_save,dcp_async_process}"
unset SEGUE_TRACE
python3 -m benchmarks.accelerator.spans "$OUT/trace.json" | tee -a "$OUT/peers.log" | head -70
part 75 figures.log python3 -m benchmarks.accelerator --json "$OUT/figures.json" --only locking,staging,overlapped,large
mkdir -p /tmp/segue-drill && cd /tmp/segue-drill || exit
printf 'device = "auto"\nranks = 1\n[config]\nsize = "30M"\n[checkpoints]\nevery_steps = 10\n' > run.toml
part 75 drill.log python3 -m segue drill --config run.toml --steps 40 --json benchmarks.accelerator.gpt:build
