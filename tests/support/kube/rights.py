"""What the account of the workers may do, as the manifest that users apply says."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import yaml

MANIFEST = Path(__file__).parents[3] / "deployments/kubernetes/access.yaml"


class Request(NamedTuple):
    """One request to the API, as its authorization sees it."""

    group: str
    resource: str
    verb: str
    namespace: str | None


def may(request: Request, manifest: Path = MANIFEST) -> bool:
    """Whether a role of the manifest permits this to the workers."""
    documents = list(yaml.safe_load_all(manifest.read_text()))
    for role in (one for one in documents if one["kind"] == "Role"):
        if role["metadata"]["namespace"] != request.namespace:
            continue
        for rule in role["rules"]:
            if (
                request.group in rule["apiGroups"]
                and request.resource in rule["resources"]
                and request.verb in rule["verbs"]
            ):
                return True
    return False
