"""The request that a start would send, as JSON and as a curl command, with secrets masked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping

from mcp_workflows.adapter import JSON, Start
from mcp_workflows_http.client import ApiClient, Prepared
from mcp_workflows_http.settings import HttpSettings
from mcp_workflows_http.start import order_scope


def preview(client: ApiClient, settings: HttpSettings, start: Start) -> Mapping[str, JSON]:
    """Return the request that starts it.

    Raises:
        EngineRefused: it cannot be made of these values.
    """
    prepared = client.prepare(settings.start.request, order_scope(start, settings))
    headers = {**prepared.headers, **client.shown_credentials}
    shown: Mapping[str, JSON] = {
        "method": prepared.method,
        "url": prepared.url,
        "headers": headers,
        "json": prepared.body,
        "form": prepared.form,
        "multipart": prepared.multipart,
        "curl": shlex.join(_curl(prepared, headers)),
    }
    return {name: value for name, value in shown.items() if value is not None}


def _curl(prepared: Prepared, headers: Mapping[str, str]) -> Iterator[str]:
    yield from ("curl", "--request", prepared.method)
    for name, text in headers.items():
        yield from ("--header", f"{name}: {text}")
    if prepared.body is not None:
        yield from ("--json", json.dumps(prepared.body, ensure_ascii=False))
    for name, text in (prepared.form or {}).items():
        yield from ("--data-urlencode", f"{name}={text}")
    for name, text in (prepared.multipart or {}).items():
        yield from ("--form-string", f"{name}={text}")
    yield prepared.url
