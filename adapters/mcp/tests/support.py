"""The server of `jobs_server.py` over HTTP, and the definition of its tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from mcp_workflows_mcp import McpAdapter, McpSettings

from adapters.mcp.tests.jobs_server import server_of
from tests.support.served import serving

ROOT = Path(__file__).resolve().parents[3]
DEFINITION: Final[Mapping[str, Any]] = {
    "starts": "keyed",
    "start": {
        "tool": "start_job",
        "args": {"workflow": "{{workflow}}", "payload": "{{arguments}}", "key": "{{key}}"},
        "handle": "{{reply.id}}",
        "same": "{{reply.workflow == workflow && reply.payload == arguments}}",
    },
    "describe": {
        "tool": "get_job",
        "args": {"job_id": "{{handle}}"},
        "status": "{{reply.state}}",
        "gone_if": "{{contains(not_null(error, ''), '404')}}",
        "map": {"running": ["busy"], "succeeded": "done", "failed": "broken", "cancelled": "stopped"},
        "output": "{{reply.result}}",
        "failure": "{{reply.error}}",
    },
    "asks": {
        "question": {
            "each": "{{reply.questions}}",
            "key": "{{item}}",
            "message": "What about {{item}}?",
            "form": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
            "send": {
                "tool": "answer_job",
                "args": {"job_id": "{{handle}}", "question": "{{item}}", "answer": "{{answer.answer}}"},
            },
            "decline": {"tool": "answer_job", "args": {"job_id": "{{handle}}", "question": "{{item}}", "answer": "no"}},
            "late_if": "{{contains(error, '409')}}",
        }
    },
    "cancel": {"tool": "stop_job", "args": {"job_id": "{{handle}}"}, "late_if": "{{contains(error, '409')}}"},
}
ACTIONS: Final[Mapping[str, Any]] = {
    "note_job": {"args": {"job_id": "{{handle}}", "text": "{{arguments}}", "key": "{{key}}"}, "sends": "keyed"},
    "tell": {"tool": "note_job", "args": {"job_id": "{{handle}}", "text": "{{arguments.text}}", "key": "{{key}}"}},
}
FIND: Final[Mapping[str, Any]] = {
    "tool": "list_jobs",
    "each": "{{reply.jobs}}",
    "where": "{{item.key == key}}",
    "handle": "{{item.id}}",
}


def http(url: str, **more: Any) -> McpAdapter:
    """Return an adapter whose server is at this URL."""
    return McpAdapter(McpSettings.model_validate({**DEFINITION, "url": url, **more}))


@asynccontextmanager
async def served(state: Path, *, dedupes: bool = True) -> AsyncGenerator[str]:
    """Serve the jobs over HTTP, and yield the URL."""
    async with serving(server_of(state, dedupes=dedupes).streamable_http_app()) as url:
        yield url
