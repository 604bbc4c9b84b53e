"""A real Airflow: `airflow standalone`, in an environment of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.request import Request, urlopen

import psutil

from tests.support.airflow import dags_of, read, standalone
from tests.support.engine_process import EngineProcess

_DAGS: Final = """
import os
import time

from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLEntryOperator, HITLOperator
from airflow.sdk import DAG, Param, task

def say(**context):
    return context["dag_run"].conf

def charge():
    print("4242 4242 is charged")
    raise ValueError("the card was declined")

with DAG("echo", schedule=None):
    task(say)()

with DAG("decline", schedule=None):
    task(say)() >> task(charge)()

with DAG("forever", schedule=None):
    task(lambda: time.sleep(600), task_id="wait")()

def wait():
    while not os.path.exists(os.path.join(os.environ["AIRFLOW_HOME"], "go")):
        time.sleep(0.2)

with DAG("hold", schedule=None, default_args={"retries": 3, "retry_delay": 1}):
    task(wait)()

with DAG("ask", schedule=None):
    ApprovalOperator(task_id="approve", subject="Ship it?", body="Version 1.4.0")

with DAG("ask-two", schedule=None):
    [ApprovalOperator(task_id=name, subject="Ship it?") for name in ("first", "second")]

with DAG("choose", schedule=None):
    HITLOperator(task_id="choose", subject="Where to?", options=["eu", "us", "asia"], multiple=True, defaults=["eu"])

with DAG("enter", schedule=None):
    amount = Param(1, type="integer", minimum=1, description="How many")
    params = {"amount": amount, "note": Param(None, type=["null", "string"], title="Note"), "urgent": False}
    HITLEntryOperator(task_id="enter", subject="How many?", params=params)
"""


_SOON: Final = {  # seconds until a task that was killed with its scheduler is run again
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "2",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
}


class Airflow(EngineProcess):
    """All of it, on SQLite."""

    patience: ClassVar[float] = 180

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder, port, "airflow.log")
        self._dags = folder / "dags"
        self._dags.mkdir(exist_ok=True)
        (self._dags / "dags.py").write_text(_DAGS)

    def argv(self) -> Sequence[str]:
        """In the foreground."""
        return standalone(self.folder / "home", self._dags, self.port, **_SOON)

    def answers(self) -> bool:
        """Whether its DAGs are there."""
        return len(dags_of(self.port)) == _DAGS.count("with DAG")

    def kill(self) -> None:
        """kill -9 of all its processes; the one that was started is not of Airflow, and does it."""
        self.stop()

    def begin(self, dag: str) -> None:
        """Start a run."""
        headers = {"content-type": "application/json"}
        url = f"{self.url}/api/v2/dags/{dag}/dagRuns"
        urlopen(Request(url, b'{"logical_date": null}', headers), timeout=60).close()

    def release(self) -> None:
        """Let all runs of `hold` end, now and later."""
        (self.folder / "home" / "go").touch()

    def read(self, path: str) -> Mapping[str, Any]:
        """A reply of its API."""
        return read(self.port, path)

    def processes(self) -> Sequence[psutil.Process]:
        """All of its processes."""
        return psutil.Process(self._running.pid).children(recursive=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"
