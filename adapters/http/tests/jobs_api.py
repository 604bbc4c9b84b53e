"""A job API as companies have them: start, describe, answer, cancel and list, over HTTP, in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.served import serving

TOKEN = "s3cret-of-the-api"

DEFINITION: Mapping[str, Any] = {
    "auth": {"bearer": TOKEN},
    "start": {
        "request": {
            "method": "POST",
            "path": "/jobs/{{workflow}}",
            "headers": {"idempotency-key": "{{key}}"},
            "json": {"input": "{{arguments}}", "label": "{{key}}"},
        },
        "handle": "{{reply.body.id}}",
        "same": "{{reply.body.input == arguments && reply.body.kind == workflow}}",
    },
    "describe": {
        "request": "/jobs/{{handle}}",
        "status": "{{reply.body.state}}",
        "map": {"running": ["queued", "active"], "succeeded": "done", "failed": "error", "cancelled": "stopped"},
        "message": "{{reply.body.stage}}",
        "output": "{{reply.body.result}}",
        "failure": "{{reply.body.error}}",
        "url": "https://jobs.example.com/{{handle}}",
    },
    "asks": {
        "approve": {
            "each": "{{reply.body.questions}}",
            "key": "{{item.id}}",
            "message": "{{item.text}}",
            "form": "{{item.form}}",
            "send": {
                "method": "POST",
                "path": "/jobs/{{handle}}/answers/{{item.id}}",
                "json": {"action": "accept", "content": "{{answer}}"},
            },
            "decline": {
                "method": "POST",
                "path": "/jobs/{{handle}}/answers/{{item.id}}",
                "json": {"action": "decline"},
            },
        }
    },
    "cancel": {"request": "DELETE /jobs/{{handle}}"},
    "settling": "1s",
}
ACTIONS: Mapping[str, Any] = {
    "note": {
        "request": {
            "method": "POST",
            "path": "/jobs/{{handle}}/notes",
            "headers": {"idempotency-key": "{{key}}"},
            "json": {"text": "{{arguments}}", "of": "{{workflow}}", "color": "{{options.color}}"},
        },
        "sends": "keyed",
    },
    "tell": {
        "request": {"method": "POST", "path": "/jobs/{{handle}}/notes", "json": {"text": "{{arguments.text}}"}},
        "output": {"notes": "{{reply.body.notes}}"},
        "refused_if": "{{reply.body.full}}",
    },
}
LIST: Mapping[str, Any] = {
    "request": {"path": "/jobs", "query": {"page": "1"}},
    "each": "{{reply.body.jobs}}",
    "handle": "{{item.id}}",
    "next": {"query": {"page": "{{reply.body.next}}"}},
}
FIND: Mapping[str, Any] = {**LIST, "where": "{{item.label == key}}"}
FORM: Mapping[str, Any] = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
QUESTIONS = {"ask": 1, "ask-two": 2}
PAGE = 5


@dataclass
class Job:
    """One job."""

    id: str
    kind: str
    input: Any
    label: str
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    stopped: bool = False
    notes: dict[str, Any] = field(default_factory=dict[str, Any])  # by key

    def shown(self) -> Mapping[str, Any]:
        """As the API tells it."""
        shown: dict[str, Any] = {"id": self.id, "kind": self.kind, "input": self.input, "label": self.label}
        open_ones = [str(each) for each in range(QUESTIONS.get(self.kind, 0)) if str(each) not in self.answers]
        if self.stopped:
            return {**shown, "state": "stopped"}
        if self.kind == "decline":
            return {**shown, "state": "error", "error": "the card was declined"}
        if self.kind == "forever":
            return {**shown, "state": "active", "stage": "still at it"}
        if self.kind == "odd":
            return {**shown, "state": "sleeping"}
        if open_ones:
            asked = [{"id": each, "text": f"Question {each}?", "form": FORM} for each in open_ones]
            return {**shown, "state": "active", "questions": asked}
        return {**shown, "state": "done", "result": self.input if not self.answers else {"answers": self.answers}}


class JobsApi:
    """The API; `dedupes` is False for one that takes no notice of the key."""

    def __init__(self, *, dedupes: bool) -> None:
        self.dedupes = dedupes
        self.jobs: dict[str, Job] = {}
        self.calls: Counter[str] = Counter()
        self.lost_notes = 0  # so many of the next notes are taken, and a gateway answers
        self.next_replies: list[Callable[[Request], Awaitable[Response]]] = []  # in place of what it would answer
        self.after: list[Callable[[Request], Awaitable[Response]]] = []  # likewise, after it has done as it was told

    def app(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/jobs/{kind}", self._faulty(self.start), methods=["POST"]),
                Route("/jobs", self._faulty(self.listed), methods=["GET"]),
                Route("/jobs/{id}", self._faulty(self.describe), methods=["GET"]),
                Route("/jobs/{id}", self._faulty(self.stop), methods=["DELETE"]),
                Route("/jobs/{id}/notes", self._faulty(self.note), methods=["POST"]),
                Route("/jobs/{id}/answers/{question}", self._faulty(self.answer), methods=["POST"]),
            ]
        )

    def _faulty(self, serve: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def served(request: Request) -> Response:
            self.calls[serve.__name__] += 1
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return JSONResponse({"error": f"wrong token {request.headers.get('authorization')}"}, status_code=401)
            if self.next_replies:
                return await self.next_replies.pop(0)(request)
            response = await serve(request)
            return await self.after.pop(0)(request) if self.after else response

        return served

    async def start(self, request: Request) -> Response:
        """Start one, or return the one of the key."""
        order, kind = json.loads(await request.body()), request.path_params["kind"]
        if kind not in {"echo", "decline", "forever", "ask", "ask-two", "odd"}:
            return JSONResponse({"error": f"no job {kind}"}, status_code=404)
        known = next((job for job in self.jobs.values() if job.label == order["label"]), None)
        if known is not None and self.dedupes:
            return JSONResponse(known.shown(), status_code=200)
        job = Job(f"job-{len(self.jobs)}", kind, order["input"], order["label"])
        self.jobs[job.id] = job
        return JSONResponse(job.shown(), status_code=201, headers={"location": f"/jobs/{job.id}"})

    async def describe(self, request: Request) -> Response:
        """Tell one."""
        job = self.jobs.get(request.path_params["id"])
        return JSONResponse({"error": "no such job"}, status_code=404) if job is None else JSONResponse(job.shown())

    async def listed(self, request: Request) -> Response:
        """The youngest first."""
        page = int(request.query_params["page"])
        jobs = [job.shown() for job in self.jobs.values()][::-1]
        more = len(jobs) > page * PAGE
        return JSONResponse({"jobs": jobs[(page - 1) * PAGE : page * PAGE], "next": str(page + 1) if more else None})

    async def stop(self, request: Request) -> Response:
        """Stop one; this API rewrites how it ended."""
        self.jobs[request.path_params["id"]].stopped = True
        return Response(status_code=204)

    async def note(self, request: Request) -> Response:
        """Take a note for a job that runs, once for each key."""
        job, note = self.jobs.get(request.path_params["id"]), json.loads(await request.body())
        if job is None:
            return JSONResponse({"error": "no such job"}, status_code=404)
        if job.stopped:
            return JSONResponse({"error": "it was stopped"}, status_code=409)
        job.notes.setdefault(request.headers.get("idempotency-key", str(len(job.notes))), note)
        if self.lost_notes:
            self.lost_notes -= 1
            return JSONResponse({"error": "bad gateway"}, status_code=502)
        return JSONResponse({"notes": len(job.notes), "full": len(job.notes) > 9})

    async def answer(self, request: Request) -> Response:
        """Take an answer once."""
        job, question = self.jobs[request.path_params["id"]], request.path_params["question"]
        if question in job.answers:
            return JSONResponse({"error": "answered"}, status_code=409)
        job.answers[question] = json.loads(await request.body())
        return Response(status_code=204)


@asynccontextmanager
async def jobs_api(*, dedupes: bool = True) -> AsyncGenerator[tuple[JobsApi, str]]:
    """The API, and its URL."""
    api = JobsApi(dedupes=dedupes)
    async with serving(api.app()) as url:
        yield api, url.removesuffix("/mcp")
