#!/bin/sh
# Create the Prefect work pools of segue on the server that PREFECT_API_URL names. Written by `segue init`.
set -eu
templates=$(dirname "$0")

# Process pools: a worker starts each flow run as a process of its own machine. process.json, next to this file, is the
# base job template. Its command starts the Prefect engine directly, so that SIGTERM reaches segue and a segment starts sooner.
for pool in spot on-demand parents; do
    prefect work-pool create "$pool" --type process --base-job-template "$templates/process.json" --overwrite
done

# Start one worker on each machine of a pool, for example as a systemd service:
#   segue worker --pool spot --limit 1                 one attempt at a time on a machine with one accelerator; segments
#                                                      start 2 to 3 s sooner than with `prefect worker start`
#   segue worker --pool on-demand --limit 1
#   prefect worker start --pool parents                no limit: a parent must never wait behind another parent; each
#                                                      one is a process of about 200 MB that mostly sleeps
