"""ECS pools with Prefect's own worker, against moto's ECS: it registers and starts tasks, but runs nothing in them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from types import SimpleNamespace

import boto3
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelling
from prefect.utilities.callables import parameter_schema

from segue.clock import SystemClock
from segue.controller.steps import decide_next, open_run
from segue.deployments.containers import SIGTERM_VARIABLE
from segue.deployments.ecs.ecs_pools import ecs_files, job_template
from segue.flows.segment import segment
from tests.flows.test_runs import until

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]
POOLS = {"ecs-spot": ("fargate", "spot"), "ecs-on-demand": ("fargate", "on-demand"), "ecs-gpu": ("ec2", "spot")}
EVENTS = "prefect-ecs-tasks-events"
SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:prefect"


def with_account(text):
    """A file with what a person writes into it."""
    return text.replace("ACCOUNT", "123456789012").replace("REGION", "us-east-1")


@pytest.fixture(scope="module")
def aws(moto_url):
    """A cluster with capacity providers, and the queue in which Prefect's worker sees that tasks stopped."""
    ecs = boto3.client("ecs", endpoint_url=moto_url)
    sqs = boto3.client("sqs", endpoint_url=moto_url)
    arn = "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:1:autoScalingGroupName/spot"
    ecs.create_capacity_provider(name="segue-spot", autoScalingGroupProvider={"autoScalingGroupArn": arn})
    ecs.create_cluster(clusterName="segue", capacityProviders=["FARGATE", "FARGATE_SPOT", "segue-spot"])
    register_machine(ecs, moto_url)
    policy = ecs_files("fargate")["deployments/ecs/queue-policy.json"]
    queue = sqs.create_queue(QueueName=EVENTS, Attributes={"Policy": with_account(policy)})["QueueUrl"]
    yield SimpleNamespace(ecs=ecs, sqs=sqs, queue=queue, url=moto_url)
    ecs.close()
    sqs.close()


def register_machine(ecs, url):
    """A machine of the capacity provider. Moto's have 4 processors and 7 GiB, whatever their type."""
    ec2 = boto3.client("ec2", endpoint_url=url)
    image = ec2.describe_images()["Images"][0]["ImageId"]
    (machine,) = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1)["Instances"]
    ec2.close()
    document = json.dumps({"instanceId": machine["InstanceId"]})
    ecs.register_container_instance(cluster="segue", instanceIdentityDocument=document)


@pytest.fixture(scope="module")
def client(stack, aws, tmp_path_factory):
    pytest.importorskip("prefect_aws", reason="the extra `ecs` is not installed")
    logs, workers = tmp_path_factory.mktemp("ecs"), []
    keys = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    # The server of the tests asks for no name and password.
    own = {"AWS_ENDPOINT_URL": aws.url, "PREFECT_API_AUTH_STRING": "name:password"}
    environment = stack.environment() | keys | own
    with get_client(sync_client=True) as client:
        try:
            for pool, (kind, capacity) in POOLS.items():
                template = json.loads(with_account(json.dumps(job_template(kind, capacity))))
                template["variables"]["properties"]["prefect_api_auth_string_secret_arn"]["default"] = SECRET
                client.create_work_pool(WorkPoolCreate(name=pool, type="ecs", base_job_template=template))
                deploy(client, pool)
                command = [sys.executable, "-m", "prefect", "worker", "start", "--type", "ecs", "--pool", pool]
                with (logs / f"{pool}.log").open("wb") as output:
                    workers.append(
                        subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
                    )
            yield client
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                end(worker)


def end(worker):
    """Wait for the end of Prefect's worker, and kill one that waits for what it has begun: that is its own affair."""
    with suppress(subprocess.TimeoutExpired):
        worker.wait(timeout=30)
        return
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def deploy(client, pool):
    client.create_deployment(
        flow_id=client.create_flow(segment),
        name=pool,
        entrypoint="segue.flows.segment.segment",
        work_pool_name=pool,
        job_variables={"cpu": 1024, "memory": 2048},
        parameter_openapi_schema=parameter_schema(segment).model_dump_for_openapi(),
        enforce_parameter_schema=True,
    )


def started(client, aws, make_spec, pool):
    """A flow run of a pool, and the task that its worker has started for it."""
    spec = make_spec(run_id=f"{pool}-{uuid.uuid4().hex[:6]}")
    plan = decide_next(open_run(spec, clock=SystemClock()), spec, clock=SystemClock()).plan
    deployment = client.read_deployment_by_name(f"segment/{pool}")
    parameters = {"spec": spec.model_dump(mode="json"), "plan": plan.model_dump(mode="json")}
    run = client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    submitted = until(lambda: client.read_flow_run(run.id).infrastructure_pid, what="the task", limit_seconds=90)
    cluster, _, arn = submitted.partition("::")
    (task,) = aws.ecs.describe_tasks(cluster=cluster, tasks=[arn], include=["TAGS"])["tasks"]
    return run, task


def definition_of(aws, task):
    return aws.ecs.describe_task_definition(taskDefinition=task["taskDefinitionArn"])["taskDefinition"]


@pytest.mark.parametrize(("pool", "provider"), [("ecs-spot", "FARGATE_SPOT"), ("ecs-on-demand", "FARGATE")])
def test_a_task_on_fargate_has_the_time_of_the_notice_and_the_capacity_of_its_pool(
    client, aws, make_spec, pool, provider
):
    run, task = started(client, aws, make_spec, pool)
    assert task["capacityProviderName"] == provider
    definition = definition_of(aws, task)
    (container,) = definition["containerDefinitions"]
    assert (container["name"], container["stopTimeout"]) == ("segue", 120)
    assert container["linuxParameters"] == {"initProcessEnabled": True}
    assert definition["requiresCompatibilities"] == ["FARGATE"]
    assert definition["networkMode"] == "awsvpc"
    assert definition["executionRoleArn"] == "arn:aws:iam::123456789012:role/segue-execution"
    assert container["secrets"] == [{"name": "PREFECT_API_AUTH_STRING", "valueFrom": SECRET}]
    (given,) = task["overrides"]["containerOverrides"]
    assert given["command"] == ["python", "-m", "segue.flows.prefect_engine"]
    variables = {one["name"]: one["value"] for one in given["environment"]}
    assert variables[SIGTERM_VARIABLE] == "crash"
    assert variables["PREFECT__FLOW_RUN_ID"] == str(run.id)
    assert "PREFECT_API_AUTH_STRING" not in variables


def test_a_task_on_ec2_has_accelerators_and_shared_memory(client, aws, make_spec):
    _, task = started(client, aws, make_spec, "ecs-gpu")
    assert task["capacityProviderName"] == "segue-spot"
    definition = definition_of(aws, task)
    # With awsvpc Prefect asks for a public address, which AWS refuses on EC2.
    assert definition["networkMode"] == "bridge"
    (container,) = definition["containerDefinitions"]
    assert container["resourceRequirements"] == [{"type": "GPU", "value": "1"}]
    assert container["linuxParameters"]["sharedMemorySize"] == 8192


def test_a_task_that_is_taken_back_before_it_runs_crashes_its_flow_run(client, aws, make_spec):
    run, task = started(client, aws, make_spec, "ecs-spot")
    detail = {
        "taskArn": task["taskArn"],
        "clusterArn": task["clusterArn"],
        "taskDefinitionArn": task["taskDefinitionArn"],
        "lastStatus": "STOPPED",
        "desiredStatus": "STOPPED",
        "stopCode": "SpotInterruption",
        "stoppedReason": "Your Spot Task was interrupted.",
        "containers": [{"name": "segue", "exitCode": 143, "lastStatus": "STOPPED"}],
    }
    event = {
        "id": str(uuid.uuid4()),
        "detail-type": "ECS Task State Change",
        "source": "aws.ecs",
        "account": "123456789012",
        "region": "us-east-1",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "resources": [task["taskArn"]],
        "detail": detail,
    }
    aws.sqs.send_message(QueueUrl=aws.queue, MessageBody=json.dumps(event))
    until(lambda: client.read_flow_run(run.id).state.type is StateType.CRASHED, what="the crash")


@pytest.mark.soak
def test_a_cancelled_flow_run_that_waits_has_its_task_stopped(client, aws, make_spec):
    run, task = started(client, aws, make_spec, "ecs-on-demand")
    client.set_flow_run_state(run.id, Cancelling())
    until(lambda: client.read_flow_run(run.id).state.type is StateType.CANCELLED, what="the cancellation")

    def is_stopped():
        (found,) = aws.ecs.describe_tasks(cluster=task["clusterArn"], tasks=[task["taskArn"]])["tasks"]
        return found.get("stoppedReason")

    until(is_stopped, what="the end of the task")
