"""The cluster: what job controller, scheduler, kubelet and the machines below them do with jobs and pods."""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.kube.nodes import Container
from tests.support.kube.objects import Key, Object, Objects, key_of, now

NODES = ("node-1", "node-2", "node-3")
_LOOK_SECONDS = 0.1
_DEFAULT_BACKOFF, _DEFAULT_GRACE_SECONDS = 6, 30.0


@dataclass
class Mode:
    """What the cluster does at present."""

    has_nodes: bool = True
    """Whether there is a node for a new pod."""
    has_image: bool = True
    is_api_away: bool = False


class Cluster:
    """One cluster without a limit of nodes."""

    def __init__(self, logs: Path) -> None:
        self.objects, self.mode, self._logs = Objects(), Mode(), logs
        self._containers: dict[str, Container] = {}
        self._counted: set[str] = set()
        """Pods whose end is in the status of their job."""
        self._tasks: set[asyncio.Task[Any]] = set()

    async def create_job(self, namespace: str, job: Object) -> Object:
        """Store a job, and create its first pod."""
        metadata = job.setdefault("metadata", {})
        metadata["namespace"] = namespace
        metadata.setdefault("name", metadata.get("generateName", "job-") + _suffix())
        job["status"] = {"active": 1, "startTime": now()}
        await self.objects.add("jobs", job)
        await self._create_pod(job)
        return job

    def delete_job(self, job: Object, grace_seconds: float | None, *, is_first: bool = False) -> None:
        """Delete a job and its pods: the job last (propagation policy Foreground) or first (Background)."""
        self._begin(self._delete_job(job, grace_seconds, is_first=is_first))

    def evict(self, job_name: str, grace_seconds: float) -> None:
        """Evict the pods of a job, as a drain of their node does. Returns at once."""
        for pod in self.pods_of(job_name):
            self._begin(self._stop_pod(pod, grace_seconds))

    def lose_node(self, job_name: str, *, reported_after_seconds: float) -> None:
        """Kill what runs on the node of a job's pod; the cluster notices it later. Returns at once."""
        for pod in self.pods_of(job_name):
            self._begin(self._lose(pod, reported_after_seconds))

    def pods_of(self, job_name: str) -> list[Object]:
        return self.objects.select("pods", selector=f"job-name={job_name}")

    def log_of(self, key: Key) -> Path:
        return self._logs / f"{key[1]}.log"

    def close(self) -> None:
        """End every process of every pod."""
        for container in list(self._containers.values()):
            container.kill()

    async def _create_pod(self, job: Object) -> None:
        template, name = job["spec"]["template"], job["metadata"]["name"]
        labels = template.get("metadata", {}).get("labels", {}) | {"job-name": name}
        metadata = {"namespace": job["metadata"]["namespace"], "name": f"{name}-{_suffix()}", "labels": labels}
        pod = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending", "conditions": []}}
        await self.objects.add("pods", pod)
        self._begin(self._run_pod(job, pod))

    async def _run_pod(self, job: Object, pod: Object) -> None:
        status, spec = pod["status"], pod["spec"]["containers"][0]
        if not (await self._is_scheduled(pod) and await self._has_image(pod, spec)):
            return
        uid = pod["metadata"]["uid"]
        try:
            container = await Container.start(uid, spec, self.log_of(key_of(pod)), node=pod["spec"]["nodeName"])
        except OSError as error:
            ended = {"exitCode": 128, "reason": "StartError", "message": str(error), "finishedAt": now()}
            await self._conclude(job, pod, ended)
            return
        self._containers[uid] = container
        status.update(phase="Running", startTime=now())
        _show(pod, spec, running={"startedAt": now()})
        await self.objects.change("pods", pod)
        job["status"]["ready"] = 1
        await self.objects.change("jobs", job)
        code = await container.wait()
        del self._containers[uid]
        if not container.is_lost:
            reason = "Completed" if code == 0 else "Error"
            ended = {"exitCode": code, "reason": reason, "startedAt": status["startTime"], "finishedAt": now()}
            await self._conclude(job, pod, ended)

    async def _is_scheduled(self, pod: Object) -> bool:
        """Wait for a node; False if the pod is deleted meanwhile."""
        status = pod["status"]
        if not self.mode.has_nodes:
            why = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
            status["conditions"] = [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
            ]
            await self.objects.change("pods", pod)
        while not self.mode.has_nodes and self._is_wanted(pod):
            await asyncio.sleep(_LOOK_SECONDS)
        pod["spec"] = pod["spec"] | {"nodeName": _node_for(pod["spec"])}
        status["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        return self._is_wanted(pod)

    async def _has_image(self, pod: Object, spec: dict[str, Any]) -> bool:
        """Wait for the image; False if the pod is deleted meanwhile."""
        if not self.mode.has_image:
            _show(pod, spec, waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"})
            await self.objects.change("pods", pod)
        while not self.mode.has_image and self._is_wanted(pod):
            await asyncio.sleep(_LOOK_SECONDS)
        return self._is_wanted(pod)

    async def _conclude(self, job: Object, pod: Object, ended: dict[str, Any]) -> None:
        is_well = ended["exitCode"] == 0
        pod["status"]["phase"] = "Succeeded" if is_well else "Failed"
        _show(pod, pod["spec"]["containers"][0], terminated=ended)
        await self.objects.change("pods", pod)
        if "deletionTimestamp" in pod["metadata"]:
            await self.objects.remove("pods", pod)
        await self._count(job, pod, is_well=is_well)

    async def _count(self, job: Object, pod: Object, *, is_well: bool) -> None:
        """Note in the status of a job how its pod ended, once."""
        uid = pod["metadata"]["uid"]
        if uid in self._counted:
            return
        self._counted.add(uid)
        status, outcome = job["status"], "succeeded" if is_well else "failed"
        status.update({"active": 0, "ready": 0, outcome: status.get(outcome, 0) + 1})
        if is_well:
            status["conditions"] = [{"type": "Complete", "status": "True"}]
        elif status["failed"] > job["spec"].get("backoffLimit", _DEFAULT_BACKOFF):
            status["conditions"] = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]
        elif "deletionTimestamp" not in job["metadata"]:
            status["active"] = 1
            await self._create_pod(job)
        await self.objects.change("jobs", job)

    async def _stop_pod(self, pod: Object, grace_seconds: float) -> None:
        pod["metadata"].update(deletionTimestamp=now(), deletionGracePeriodSeconds=int(grace_seconds))
        await self.objects.change("pods", pod)
        job = self.objects.find("jobs", (pod["metadata"]["namespace"], pod["metadata"]["labels"]["job-name"]))
        if job is not None and job["spec"].get("podReplacementPolicy") != "Failed":
            await self._count(job, pod, is_well=False)  # Kubernetes does not wait for its end.
        container = self._containers.get(pod["metadata"]["uid"])
        if container is not None:
            await container.stop(grace_seconds)  # `_run_pod` concludes it.
            return
        if job is not None and "deletionTimestamp" not in job["metadata"] and pod["status"]["phase"] == "Pending":
            # A pod that is preempted before it ran counts as failed.
            await self._conclude(job, pod, {"exitCode": 137, "reason": "Preempted", "finishedAt": now()})
        await self.objects.remove("pods", pod)

    async def _delete_job(self, job: Object, grace_seconds: float | None, *, is_first: bool) -> None:
        job["metadata"]["deletionTimestamp"] = now()
        if is_first:
            await self.objects.remove("jobs", job)
        else:
            job["metadata"]["finalizers"] = ["foregroundDeletion"]
            await self.objects.change("jobs", job)
        for pod in self.pods_of(job["metadata"]["name"]):
            own = pod["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
            await self._stop_pod(pod, float(own if grace_seconds is None else grace_seconds))
        if not is_first:
            await self.objects.remove("jobs", job)

    async def _lose(self, pod: Object, reported_after_seconds: float) -> None:
        container = self._containers.get(pod["metadata"]["uid"])
        if container is not None:
            container.is_lost = True
            container.kill()
        await asyncio.sleep(reported_after_seconds)
        pod["metadata"]["deletionTimestamp"] = now()
        job = self.objects.find("jobs", (pod["metadata"]["namespace"], pod["metadata"]["labels"]["job-name"]))
        if job is not None:
            await self._conclude(job, pod, {"exitCode": 255, "reason": "NodeLost", "finishedAt": now()})

    def _is_wanted(self, pod: Object) -> bool:
        return "deletionTimestamp" not in pod["metadata"]

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _node_for(pod: dict[str, Any]) -> str:
    """The first node that the pod does not prefer to avoid."""
    affinity = pod.get("affinity", {}).get("nodeAffinity", {})
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", ())
    rules = [rule for term in preferred for rule in term["preference"]["matchExpressions"]]
    avoided = {name for rule in rules if rule["operator"] == "NotIn" for name in rule["values"]}
    return next((node for node in NODES if node not in avoided), NODES[0])


def _show(pod: Object, spec: dict[str, Any], **state: Any) -> None:
    pod["status"]["containerStatuses"] = [
        {
            "name": spec["name"],
            "image": spec.get("image") or "none",
            "imageID": "",
            "ready": "running" in state,
            "restartCount": 0,
            "state": state,
        }
    ]


def _suffix() -> str:
    return "".join(random.choices(string.ascii_lowercase + string.digits, k=5))
