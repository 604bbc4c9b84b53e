"""A server with split tools, for tests: jobs that end, fail, ask, or go on for ever. Its state outlives it in a file.

`python -m adapters.mcp.tests.jobs_server --state FILE --port N` speaks MCP over HTTP.
"""

from __future__ import annotations

import argparse
import json
import threading
import uuid
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

WORKFLOWS = {"echo", "decline", "forever", "ask", "ask-two"}


class Jobs:
    """The jobs, by id, in a file: as those of an API behind a server would be."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lock = threading.RLock()  # tools run in threads

    def all(self) -> dict[str, Any]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}

    def put(self, job: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            jobs = {**self.all(), job["id"]: job}
            written = self._path.with_suffix(".new")
            written.write_text(json.dumps(jobs))
            written.replace(self._path)
            return job

    def get(self, job_id: str) -> dict[str, Any]:
        found = self.all().get(job_id)
        if found is None:
            raise ToolError(f"404: there is no job {job_id}")
        return found


def server_of(path: Path, *, dedupes: bool = True) -> MCPServer:
    """Return the server."""
    jobs = Jobs(path)
    server = MCPServer("jobs")

    def start_job(workflow: str, payload: dict[str, Any], key: str) -> dict[str, Any]:
        """Start a job."""
        if workflow not in WORKFLOWS:
            raise ToolError(f"400: there is no workflow {workflow}")
        with jobs.lock:
            for job in jobs.all().values():
                if dedupes and job["key"] == key:
                    return job
            asks = {"ask": ["q1"], "ask-two": ["q1", "q2"]}.get(workflow, [])
            state = {"echo": "done", "decline": "broken"}.get(workflow, "busy")
            made = {"id": uuid.uuid4().hex[:12], "key": key, "workflow": workflow, "payload": payload}
            return jobs.put({**made, "state": state, "questions": asks, "answers": {}, "number": len(jobs.all())})

    def get_job(job_id: str) -> dict[str, Any]:
        """Tell how a job stands."""
        job = jobs.get(job_id)
        if job["state"] == "broken":
            return {**job, "error": "the card was declined"}
        return {**job, "result": job["payload"] if job["workflow"] == "echo" else job["answers"]}

    def stop_job(job_id: str) -> dict[str, Any]:
        """Stop a job."""
        job = jobs.get(job_id)
        if job["state"] != "busy":
            raise ToolError("409: it has ended")
        return jobs.put({**job, "state": "stopped", "questions": []})

    def answer_job(job_id: str, question: str, answer: str) -> dict[str, Any]:
        """Answer a question of a job."""
        job = jobs.get(job_id)
        if question not in job["questions"]:
            raise ToolError("409: it was answered")
        left = [each for each in job["questions"] if each != question]
        answers = {**job["answers"], question: answer}
        return jobs.put({**job, "questions": left, "answers": answers, "state": "busy" if left else "done"})

    def note_job(job_id: str, text: str, key: str) -> dict[str, Any]:
        """Take a note for a job, once for each key."""
        if text == "nonsense":
            raise ToolError("I do not understand")
        with jobs.lock:
            job = jobs.get(job_id)
            if job["state"] != "busy":
                raise ToolError("409: it has ended")
            notes = {key: text, **job.get("notes", {})}
            return {"notes": len(jobs.put({**job, "notes": notes})["notes"])}

    def list_jobs() -> dict[str, Any]:
        """List the jobs, the youngest first."""
        return {"jobs": sorted(jobs.all().values(), key=lambda job: -job["number"])}

    for tool in (start_job, get_job, stop_job, answer_job, note_job, list_jobs):
        server.tool()(tool)
    return server


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--forgetful", action="store_true", help="take no notice of keys")
    given = parser.parse_args()
    server_of(given.state, dedupes=not given.forgetful).run("streamable-http", port=given.port)


if __name__ == "__main__":
    main()
