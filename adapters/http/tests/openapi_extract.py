"""The part of GitHub's OpenAPI description that the preset github-actions uses, for its tests; prints JSON.

`npm pack @octokit/openapi`, unpack it, then `python -m adapters.http.tests.openapi_extract
package/generated/api.github.com.json > adapters/http/tests/github.openapi.json`. The description is under the
MIT license.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

VERSION: Final = "2026-03-10"  # of the REST API: the description is of 2022-11-28, and says what has changed since
_REPO: Final = "/repos/{owner}/{repo}"
_RUN: Final = f"{_REPO}/actions/runs/{{run_id}}"
_WORKFLOW: Final = f"{_REPO}/actions/workflows/{{workflow_id}}"
OPERATIONS: Final = (
    ("post", f"{_WORKFLOW}/dispatches"),
    ("get", f"{_WORKFLOW}/runs"),
    ("get", _RUN),
    ("get", f"{_RUN}/jobs"),
    ("get", f"{_RUN}/pending_deployments"),
    ("post", f"{_RUN}/pending_deployments"),
    ("post", f"{_RUN}/cancel"),
    ("get", f"{_REPO}/actions/jobs/{{job_id}}/logs"),
)
_LEFT_OUT: Final = {"description", "summary", "externalDocs", "tags", "examples", "example", "title", "deprecated"}


def _changed(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    """The operation in this version of the API, of which the changes only remove (JSON Patch)."""
    for change in operation.get("x-github-breaking-changes", ()):
        for step in change["patch"] if change["version"] <= VERSION else ():
            *path, last = [part.replace("~1", "/") for part in step["path"].split("/")[1:]]
            place: Any = operation
            for part in path:
                place = place[part]
            if step["op"] == "remove":
                del place[last]
    return operation


def _trimmed(node: Any, *, names: bool = False) -> Any:
    """The node without prose; `names`: its keys are names of properties."""
    if isinstance(node, list):
        return [_trimmed(each) for each in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    kept = cast("dict[str, Any]", node).items()
    return {
        key: _trimmed(value, names=key == "properties" and not names)
        for key, value in kept
        if names or not (key in _LEFT_OUT or key.startswith("x-"))
    }


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        yield from (found for each in cast("list[Any]", node) for found in _references(each))
    elif isinstance(node, dict):
        for key, value in cast("dict[str, Any]", node).items():
            yield from [value] if key == "$ref" and isinstance(value, str) else _references(value)


def _examples(whole: Mapping[str, Any], operation: Mapping[str, Any]) -> Mapping[str, Any]:
    """The vendor's own example of a reply, by HTTP status."""
    found: dict[str, Any] = {}
    for status, response in operation["responses"].items():
        example = response.get("content", {}).get("application/json", {}).get("examples", {}).get("default", {})
        name = example.get("$ref", "").rpartition("/")[2]
        found |= {status: whole["components"]["examples"][name]["value"]} if name else {}
    return found


def extract(whole: Mapping[str, Any], license_text: str) -> Mapping[str, Any]:
    """These operations, each with `x-examples`, and the components that they need."""
    info = {**whole["info"], "x-api-version": VERSION, "x-license-text": license_text.strip()}
    found: dict[str, Any] = {"openapi": whole["openapi"], "info": info, "paths": {}, "components": {}}
    for method, path in OPERATIONS:
        operation = _changed(whole["paths"][path][method])
        kept = {**_trimmed(operation), "x-examples": _examples(whole, operation)}
        found["paths"].setdefault(path, {})[method] = kept
    wanted = list(_references(found["paths"]))
    while wanted:
        _, _, kind, name = wanted.pop().split("/")
        place = found["components"].setdefault(kind, {})
        if name not in place:
            place[name] = _trimmed(whole["components"][kind][name])
            wanted += _references(place[name])
    return found


if __name__ == "__main__":
    described = Path(sys.argv[1])
    part = extract(json.loads(described.read_text()), (described.parents[1] / "LICENSE").read_text())
    print(json.dumps(part, indent=1, sort_keys=True))
