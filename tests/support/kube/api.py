"""The HTTP API: what prefect-kubernetes calls, and what the tests do to the cluster below /faults."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web

from tests.support.kube.cluster import Cluster
from tests.support.kube.objects import KINDS, Plural, key_of
from tests.support.kube.rights import Request, may

_GROUPS = {"pods": "", "jobs": "batch"}


def application(cluster: Cluster) -> web.Application:
    """The server of a cluster."""
    requests: Counter[str] = Counter()
    app = web.Application(middlewares=[_guard(cluster, requests)])
    for path, answer in _discovery().items():
        app.router.add_get(path, lambda request, answer=answer: _json(answer))
    handlers = _Handlers(cluster)
    for base, plural in (("/api/v1", "pods"), ("/apis/batch/v1", "jobs")):
        app.router.add_get(f"{base}/{{plural:{plural}}}", handlers.collection)
        app.router.add_route("*", f"{base}/namespaces/{{namespace}}/{{plural:{plural}}}", handlers.collection)
        app.router.add_route("*", f"{base}/namespaces/{{namespace}}/{{plural:{plural}}}/{{name}}", handlers.one)
    app.router.add_get("/api/v1/namespaces/{namespace}/{plural:pods}/{name}/log", handlers.log)
    app.router.add_get("/api/v1/nodes", lambda request: _json(_nodes()))
    app.router.add_get("/api/v1/namespaces", lambda request: _json({}))  # Never permitted.
    app.router.add_post("/faults/{what}", handlers.fault)
    app.router.add_get("/faults/requests", lambda request: _json(dict(requests)))
    app.router.add_get("/faults/pods", handlers.pods)
    return app


def _guard(cluster: Cluster, requests: Counter[str]) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
        if request.path.startswith("/faults"):
            return await handler(request)
        asked = _asked(request)
        requests[f"{asked.verb} {asked.resource}" if asked else request.path] += 1
        if cluster.mode.is_api_away:
            return _failure(503, "ServiceUnavailable", "the API server is away")
        # A person may do everything; the account of the workers what its role says.
        if asked is not None and request.headers.get("Authorization") != "Bearer person" and not may(asked):
            return _failure(403, "Forbidden", f"the account of the workers may not {asked.verb} {asked.resource}")
        return await handler(request)

    return guard


def _asked(request: web.Request) -> Request | None:
    """What a request wants; None for what everybody may read."""
    parts = request.path.strip("/").split("/")
    if request.path in ("/api/v1/namespaces", "/api/v1/nodes"):
        return Request("", parts[-1], "list", None)
    found = request.match_info
    if "plural" not in found:
        return None
    resource = found["plural"] + ("/log" if parts[-1] == "log" else "")
    verb = {"POST": "create", "DELETE": "delete"}.get(request.method)
    if verb is None:
        verb = "watch" if _is_watch(request) else "get" if "name" in found else "list"
    return Request(_GROUPS[found["plural"]], resource, verb, found.get("namespace"))


def _is_watch(request: web.Request) -> bool:
    return request.query.get("watch", "").lower() in ("true", "1")


class _Handlers:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def collection(self, request: web.Request) -> web.StreamResponse:
        plural, namespace = cast(Plural, request.match_info["plural"]), request.match_info.get("namespace")
        objects, selector = self._cluster.objects, request.query.get("labelSelector", "")
        if request.method == "POST" and namespace is not None:
            return _json(await self._cluster.create_job(namespace, await request.json()), status=201)
        if _is_watch(request):
            return await self._watch(request, plural, namespace, selector)
        kind, api = KINDS[plural]
        found = objects.select(plural, namespace=namespace, selector=selector)
        metadata = {"resourceVersion": str(objects.version)}
        return _json({"kind": f"{kind}List", "apiVersion": api, "metadata": metadata, "items": found})

    async def _watch(
        self, request: web.Request, plural: Plural, namespace: str | None, selector: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        since = int(request.query.get("resourceVersion") or self._cluster.objects.version)
        changes = self._cluster.objects.watch(plural, since=since, namespace=namespace, selector=selector)
        async for change in changes:
            if self._cluster.mode.is_api_away:
                break
            if change is not None:
                line = {"type": change.kind, "object": change.object}
                await response.write(json.dumps(line).encode() + b"\n")
        return response

    async def one(self, request: web.Request) -> web.Response:
        plural, key = cast(Plural, request.match_info["plural"]), _key(request)
        found = self._cluster.objects.find(plural, key)
        if found is None:
            return _failure(404, "NotFound", f'{plural} "{key[1]}" not found')
        if request.method == "DELETE" and plural == "jobs":
            body = json.loads(await request.text() or "{}")
            grace = request.query.get("gracePeriodSeconds", body.get("gracePeriodSeconds"))
            self._cluster.delete_job(found, None if grace is None else float(grace))
        return _json(found)

    async def log(self, request: web.Request) -> web.Response:
        path = self._cluster.log_of(_key(request))
        if request.query.get("previous", "").lower() == "true" or not path.exists():
            return _failure(400, "BadRequest", "previous terminated container not found")
        lines = path.read_text(errors="replace").splitlines()
        return web.Response(text="\n".join(lines[-int(request.query.get("tailLines", len(lines) or 1)) :]) + "\n")

    async def fault(self, request: web.Request) -> web.Response:
        what, given = request.match_info["what"], request.query
        match what:
            case "evict":
                self._cluster.evict(given["job"], float(given["grace_seconds"]))
            case "lose-node":
                self._cluster.lose_node(given["job"], reported_after_seconds=float(given["reported_after_seconds"]))
            case "delete":
                (job,) = [j for j in self._cluster.objects.select("jobs") if key_of(j)[1] == given["job"]]
                self._cluster.delete_job(job, None, is_first=given["cascade"] == "background")
            case "mode":
                for name, value in given.items():
                    setattr(self._cluster.mode, name, value == "true")
            case _:
                return _failure(404, "NotFound", what)
        return _json({})

    async def pods(self, request: web.Request) -> web.Response:
        return _json({"pods": self._cluster.objects.select("pods"), "jobs": self._cluster.objects.select("jobs")})


def _key(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


def _json(answer: object, *, status: int = 200) -> web.Response:
    return web.json_response(answer, status=status)


def _nodes() -> dict[str, object]:
    names = {"spot-1": {"karpenter.sh/capacity-type": "spot"}, "small-1": {"node.kubernetes.io/instance-type": "t3"}}
    items = [{"metadata": {"name": name, "labels": labels}} for name, labels in names.items()]
    return {"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}


def _failure(code: int, reason: str, message: str) -> web.Response:
    facts = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return _json(facts | {"reason": reason, "message": message, "code": code}, status=code)


def _discovery() -> dict[str, object]:
    """What a client reads first. Without `namespaces` beside the pods, the observer waits for ever."""
    batch = {"groupVersion": "batch/v1", "version": "v1"}
    pods, jobs = _resource("pods", "Pod"), _resource("jobs", "Job")
    namespaces = _resource("namespaces", "Namespace") | {"namespaced": False}
    return {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "groups": [{"name": "batch", "versions": [batch], "preferredVersion": batch}],
        },
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [pods, namespaces]},
        "/apis/batch/v1": {"kind": "APIResourceList", "groupVersion": "batch/v1", "resources": [jobs]},
    }


def _resource(name: str, kind: str) -> dict[str, object]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": verbs}
