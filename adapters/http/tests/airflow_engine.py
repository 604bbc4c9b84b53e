"""A real Airflow: `airflow standalone`, in an environment of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from tests.support.airflow import dags_of, read, standalone
from tests.support.engine_process import EngineProcess

_DAGS: Final = """
import time

from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLEntryOperator
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

with DAG("ask", schedule=None):
    ApprovalOperator(task_id="approve", subject="Ship it?", body="Version 1.4.0")

with DAG("ask-two", schedule=None):
    [ApprovalOperator(task_id=name, subject="Ship it?") for name in ("first", "second")]

with DAG("enter", schedule=None):
    amount = Param(1, type="integer", minimum=1, description="How many")
    params = {"amount": amount, "note": Param(None, type=["null", "string"], title="Note"), "urgent": False}
    HITLEntryOperator(task_id="enter", subject="How many?", params=params)
"""


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
        return standalone(self.folder / "home", self._dags, self.port)

    def answers(self) -> bool:
        """Whether its DAGs are there."""
        return len(dags_of(self.port)) == _DAGS.count("with DAG")

    def kill(self) -> None:
        """kill -9 of all its processes; the one that was started is not of Airflow, and does it."""
        self.stop()

    def read(self, path: str) -> Mapping[str, Any]:
        """A reply of its API."""
        return read(self.port, path)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"
