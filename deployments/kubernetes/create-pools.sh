#!/bin/sh
# Create the Prefect work pools on Kubernetes, on the server that PREFECT_API_URL names. Written by `segue init`.
# It needs the package prefect-kubernetes: install segue with its extra `kubernetes`.
set -eu
pools=$(dirname "$0")/pools

# Put your images in place of registry.example.com in pools/*.json and workers.yaml first.
for pool in spot on-demand parents; do
    prefect work-pool create "$pool" --type kubernetes --base-job-template "$pools/$pool.json" --overwrite
done
