"""AWS refuses: answers that the local engine does not give, through all of botocore."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from botocore.awsrequest import AWSResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """As urllib3 gives it to botocore."""

    content: bytes

    def stream(self) -> Iterator[bytes]:
        yield self.content


@contextmanager
def refusing(client: Any, operation: str, code: str, *, unless: str | None = None) -> Generator[None]:
    """Let AWS answer so meanwhile, unless this is in the request; Any: botocore has no types."""

    def answer(request: Any, **_: Any) -> AWSResponse | None:
        if unless is not None and unless.encode() in (request.body or b""):
            return None
        content = json.dumps({"__type": code, "message": "no"}).encode()
        return AWSResponse(request.url, 400, {"content-type": "application/x-amz-json-1.0"}, Body(content=content))

    events, name = client.meta.events, f"before-send.*.{operation}"
    events.register(name, answer)
    try:
        yield
    finally:
        events.unregister(name, answer)
