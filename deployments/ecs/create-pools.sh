#!/bin/sh
# Create the Prefect work pools on Amazon ECS, on the server that PREFECT_API_URL names. Written by `segue init`.
# It needs the package prefect-aws: install segue with its extra `ecs`.
set -eu
pools=$(dirname "$0")/pools

# First put your images in place of registry.example.com in pools/*.json, and the number of your account in place of
# ACCOUNT. Cluster, capacity providers, roles and the queue of ended tasks: docs/ecs.md of segue has the steps.
for pool in spot on-demand parents; do
    prefect work-pool create "$pool" --type ecs --base-job-template "$pools/$pool.json" --overwrite
done
