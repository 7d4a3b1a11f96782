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
#   segue serve --runs 100                             the pool parents: all parents in one process, which is started in
#                                                      the folder SEGUE_HOME; more than 100 open runs: a larger number
# or, with a process of about 230 MB for each parent, and no limit, because no parent may wait behind another one:
#   prefect worker start --pool parents
