"""Part of a vendor's OpenAPI description: what it says about a request and a reply, and its own examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

from jsonschema_rs import Draft202012Validator

_OF_ANY = {401, 403, 404, 429}  # of every operation, though not described
_WRITTEN = re.compile(r"\d+|true|false")


def _as_schema(node: Any) -> Any:
    """The JSON Schema of a schema of OpenAPI 3.0."""
    if isinstance(node, list):
        return [_as_schema(each) for each in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    found = {key: _as_schema(value) for key, value in cast("dict[str, Any]", node).items()}
    return {"anyOf": [{"type": "null"}, found]} if found.pop("nullable", False) is True else found


class Description:
    """The operations of a vendor; all errors are told as texts."""

    def __init__(self, name: str) -> None:
        self._whole = json.loads((Path(__file__).parent / f"{name}.openapi.json").read_text())
        self._components = _as_schema(self._whole["components"])
        self._paths = {
            re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path) + "$"): methods
            for path, methods in self._whole["paths"].items()
        }

    def example(self, operation: str, **changed: Any) -> Any:
        """The vendor's example of a reply to `GET /path/{id}`, with these fields of an object."""
        method, path = operation.split(" ")
        found = deepcopy(next(iter(self._whole["paths"][path][method.lower()]["x-examples"].values())))
        return {**cast("dict[str, Any]", found), **changed} if isinstance(found, dict) else found

    def wrong_request(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Sequence[str]:
        """What is wrong with a request."""
        found = self._operation(method, path)
        if found is None:
            return [f"{method} {path}: no such operation"]
        operation, of_path = found
        parameters = {each["name"]: each for each in map(self._resolved, operation.get("parameters", ()))}
        wrong = [f"{method} {path}: no parameter {name}" for name in query if name not in parameters]
        for name, parameter in parameters.items():
            text = {**of_path, **query}.get(name)
            wrong += [] if text is None else self._wrong(_typed(text, parameter), parameter["schema"])
        return [*wrong, *self._wrong_body(operation, body)]

    def wrong_reply(self, method: str, path: str, status: int, body: Any) -> Sequence[str]:
        """What is wrong with a reply."""
        found = self._operation(method, path)
        if found is None:
            return [f"{method} {path}: no such operation"]
        responses = found[0]["responses"]
        if str(status) not in responses:
            return [] if status in _OF_ANY else [f"{method} {path}: it never answers {status}"]
        content = self._resolved(responses[str(status)]).get("content", {}).get("application/json")
        return [] if content is None else list(self._wrong(body, content["schema"]))

    def _operation(self, method: str, path: str) -> tuple[Mapping[str, Any], Mapping[str, str]] | None:
        for pattern, methods in self._paths.items():
            if (found := pattern.match(path)) and method.lower() in methods:
                return methods[method.lower()], found.groupdict()
        return None

    def _resolved(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        if "$ref" not in node:
            return node
        _, _, kind, name = node["$ref"].split("/")
        return self._whole["components"][kind][name]

    def _wrong_body(self, operation: Mapping[str, Any], body: Any) -> Iterator[str]:
        described = operation.get("requestBody", {})
        if body is None and not described.get("required"):
            return
        if not described:
            yield f"a body where none is described: {body}"
            return
        schema = described["content"]["application/json"]["schema"]
        yield from self._wrong(body, {**schema, "additionalProperties": False})

    def _wrong(self, value: Any, schema: Any) -> Iterator[str]:
        whole = {**_as_schema(schema), "components": self._components}
        for error in Draft202012Validator(whole).iter_errors(value):
            yield f"{'/'.join(map(str, error.instance_path))}: {error.message[:300]}"


def _typed(text: str, parameter: Mapping[str, Any]) -> Any:
    """The value that the text of a parameter stands for."""
    written = parameter["schema"].get("type") in {"integer", "boolean"} and _WRITTEN.fullmatch(text)
    return json.loads(text) if written else text
