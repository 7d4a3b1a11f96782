"""The files for ECS: what only the kind of capacity that needs it has, and names that must agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from segue.deployments.containers import POOLS
from segue.deployments.ecs.ecs_pools import ecs_files

PAGE = Path(__file__).parents[3] / "docs/ecs.md"
NETWORK = {"vpc_id", "network_configuration"}


def template_of(kind, pool):
    return json.loads(ecs_files(kind)[f"deployments/ecs/pools/{pool}.json"])


@pytest.mark.parametrize(("kind", "on_machines"), [("fargate", ()), ("ec2", ("spot", "on-demand"))])
def test_only_tasks_on_fargate_have_a_network_of_their_own(kind, on_machines):
    for pool in POOLS:
        found = template_of(kind, pool)
        configuration, variables = found["job_configuration"], found["variables"]["properties"]
        mode = configuration["task_definition"]["networkMode"]
        assert mode == ("bridge" if pool in on_machines else "awsvpc")
        assert (variables.keys() >= NETWORK) is (configuration.keys() >= NETWORK) is (pool not in on_machines)


@pytest.mark.parametrize("pool", POOLS)
def test_every_role_is_one_that_workers_may_pass_on(pool):
    files = ecs_files("fargate")
    (passed,) = [
        one for one in json.loads(files["deployments/ecs/worker-policy.json"])["Statement"] if one["Sid"] == "Roles"
    ]
    variables = template_of("fargate", pool)["variables"]["properties"]
    assert {variables[name]["default"] for name in ("task_role_arn", "execution_role_arn")} == set(passed["Resource"])


def test_the_rule_of_the_page_may_write_to_the_queue_that_workers_read():
    files = ecs_files("fargate")
    (statement,) = json.loads(files["deployments/ecs/queue-policy.json"])["Statement"]
    queue, rule = statement["Resource"], statement["Condition"]["ArnEquals"]["aws:SourceArn"]
    assert f"--queue-name {queue.rpartition(':')[2]}" in PAGE.read_text()
    assert f"put-rule --name {rule.rpartition('/')[2]}" in PAGE.read_text()
    rights = json.loads(files["deployments/ecs/worker-policy.json"])["Statement"]
    (read,) = [one for one in rights if one["Sid"] == "StoppedTasks"]
    assert read["Resource"].rpartition(":")[2] == queue.rpartition(":")[2]
