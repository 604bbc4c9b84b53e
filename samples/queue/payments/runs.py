"""The runs of a queue in a table: id, input and its digest, state, result, questions. Copy this file.

The queue carries ids only. Whatever it does with a message (drop it, deliver it twice, forget its result), the table
has one run for one id, and a run begins once.
"""

from __future__ import annotations

import functools
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

TABLES = """
create table if not exists runs (
    id text primary key, workflow text, input text, digest text, state text default 'queued', result text,
    seen double precision);
create table if not exists questions (
    run text, key text, message text, schema text, answer text, primary key (run, key));
"""
LOOK_EVERY = 0.5  # seconds between two looks of a run for its answer, or whether to stop
HEARTBEAT_SECONDS = 10.0  # between two heartbeats of a run
LOST_AFTER = 60.0  # seconds without one, and its worker is gone


class RunCancelledError(Exception):
    """The run was asked to stop."""


class Runs:
    """The table. Each statement is a transaction of its own."""

    def __init__(self, path: str) -> None:
        self.path = path

    def do(self, sql: str, *values: object) -> list[Any]:
        """Run one statement and return its rows; the state of a run changes only from what it was."""
        with closing(sqlite3.connect(self.path, timeout=5, isolation_level=None)) as database:
            database.row_factory = sqlite3.Row
            database.executescript(TABLES)
            return database.execute(sql, values).fetchall()

    def add(self, run: str, workflow: str, arguments: Any, digest: str) -> str:
        """Add a run unless there is one with this id; return the state of the one that is there."""
        order = (run, workflow, json.dumps(arguments), digest)
        sql = "insert into runs (id, workflow, input, digest) values (?, ?, ?, ?) on conflict do nothing"
        self.do(sql, *order)
        return str(self.get(run)["state"])

    def get(self, run: str) -> Any:
        """Return the row of a run; an IndexError if there is none. A run whose worker is gone has failed."""
        row = self.do("select * from runs where id = ?", run)[0]
        if row["state"] not in ("running", "stopping") or row["seen"] > time.time() - LOST_AFTER:
            return row
        sql = "update runs set state = 'failed', result = ? where id = ? and seen = ? and state = ?"
        self.do(sql, json.dumps("its worker is gone"), run, row["seen"], row["state"])
        return self.get(run)

    def stop(self, run: str) -> None:
        """Cancel a run that is queued; ask one that has begun to stop."""
        sql = "update runs set state = case state when 'queued' then 'cancelled' else 'stopping' end"
        self.do(f"{sql} where id = ? and state in ('queued', 'running')", run)

    def questions(self, run: str) -> list[Any]:
        """Return the open questions of a run."""
        return self.do("select * from questions where run = ? and answer is null", run)

    def answer(self, run: str, key: str, content: Any) -> None:
        """Answer a question: `content` is what a person filled in, None if nothing. Later answers change nothing."""
        sql = "update questions set answer = ? where run = ? and key = ? and answer is null"
        self.do(sql, json.dumps(content), run, key)

    def tracked(self, function: Callable[..., Any]) -> Callable[[str], None]:
        """Return a task of the queue: it takes the id of a run, and calls the function with the run and its input."""

        @functools.wraps(function)
        def task(run: str) -> None:
            sql = "update runs set state = 'running', seen = ? where id = ? and state = 'queued' returning input"
            if not (begun := self.do(sql, time.time(), run)):
                return  # a second message of a run that has begun, or of one that was cancelled
            state, result = self._outcome(function, run, json.loads(begun[0]["input"]))
            sql = "update runs set state = ?, result = ? where id = ? and state in ('running', 'stopping')"
            self.do(sql, state, json.dumps(result), run)

        return task

    def _outcome(self, function: Callable[..., Any], run: str, arguments: Mapping[str, Any]) -> tuple[str, Any]:
        try:
            with self._alive(run):
                return "done", function(Run(runs=self, id=run), **arguments)
        except RunCancelledError:
            return "cancelled", None
        except Exception as error:  # the end of a task, whatever ends it
            logger.exception("run %s failed", run)
            return "failed", str(error)

    @contextmanager
    def _alive(self, run: str) -> Generator[None]:
        """Give signs of life, in a thread: a worker that is killed gives none."""
        over = threading.Event()

        def send_heartbeats() -> None:
            while not over.wait(HEARTBEAT_SECONDS):
                self.do("update runs set seen = ? where id = ?", time.time(), run)

        thread = threading.Thread(target=send_heartbeats, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@dataclass(frozen=True)
class Run:
    """A run, as its function knows it."""

    runs: Runs
    id: str

    def ask(self, key: str, message: str, schema: Mapping[str, Any]) -> Any:
        """Ask a person and wait for the answer: what was filled in, or None if the person declined.

        A key is for one question of a run: `approve-1`, `approve-2` for two in turn.
        """
        self.put(key, message, schema)
        return self.wait_for(key)

    def put(self, key: str, message: str, schema: Mapping[str, Any]) -> None:
        """Ask without waiting, for several questions at once."""
        question = (self.id, key, message, json.dumps(schema))
        sql = "insert into questions (run, key, message, schema) values (?, ?, ?, ?) on conflict do nothing"
        self.runs.do(sql, *question)

    def wait_for(self, key: str) -> Any:
        """Wait for the answer to a question."""
        sql = "select answer from questions where run = ? and key = ?"
        while (answer := self.runs.do(sql, self.id, key)[0]["answer"]) is None:
            self.pause(LOOK_EVERY)
        return json.loads(answer)

    def pause(self, seconds: float = 0) -> None:
        """Wait, and end here if the run is to stop: call it between two steps of a long run."""
        until = time.monotonic() + seconds
        while True:
            if self.runs.get(self.id)["state"] != "running":
                raise RunCancelledError
            if (left := until - time.monotonic()) <= 0:
                return
            time.sleep(min(left, LOOK_EVERY))
