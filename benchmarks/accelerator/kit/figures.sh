#!/usr/bin/env bash
# The figures: saves of a GPT beside its peers, locking of pages, staging, and a drill on the device.
# SIZE, STEPS, EVERY, PEERS: of the GPT; BYTES, ON: of the rest; with ON=cpu it only tests itself.
. benchmarks/accelerator/kit/setup.sh
SEGUE_TRACE=$OUT/trace.json part "${LIMIT:-170}" peers.log python3 -m benchmarks.accelerator.peers --seconds 50 \
    --json "$OUT/peers.json" --size "${SIZE:-370M}" --steps "${STEPS:-90}" --every "${EVERY:-30}" \
    --only "${PEERS:-bare,segue_nosave,segue,segue_overlapped,torch_save,dcp_async_process}"
python3 -m benchmarks.accelerator.spans "$OUT/trace.json" >> "$OUT/peers.log" 2>&1
tail -n +8 "$OUT/peers.log" | head -80
LINES_SHOWN=30 part "${FIGURES_LIMIT:-75}" figures.log python3 -m benchmarks.accelerator \
    --bytes "${BYTES:-5000000000}" --on "${ON:-cuda}" --only "${PARTS:-locking,staging,overlapped,large}"
[ -z "$NO_DRILL" ] || exit 0
mkdir -p /tmp/segue-drill && cd /tmp/segue-drill || exit
printf 'device = "auto"\n[config]\nsize = "%s"\n[checkpoints]\nevery_steps = 10\n' "${DRILL_SIZE:-30M}" > run.toml
part 90 drill.log python3 -m segue drill --config run.toml --steps 40 --json benchmarks.accelerator.gpt:build
printf 'device = "auto"\n[checkpoints]\nevery_steps = 10\n' > run.toml
part 90 drill.log python3 -m segue drill --config run.toml --steps 40 --kills 1 --json -- \
    python3 -m benchmarks.accelerator.program 40 "${DRILL_SIZE:-30M}"
