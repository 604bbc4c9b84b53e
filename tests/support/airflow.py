"""Airflow as it runs on a developer's machine: `airflow standalone`, on SQLite, without logins."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from tests.support.child_processes import free_port
from tests.support.environments import AIRFLOW, python_of

_PROCESS_TREE: Final = Path(__file__).with_name("process_tree.py")


def standalone(home: Path, dags: Path, port: int, **more: str) -> list[str]:
    """What starts it, and kills all its processes when it is asked to end; `more` are variables of its environment."""
    programs = python_of("airflow", AIRFLOW).parent
    url = f"http://127.0.0.1:{port}"
    settings = {
        "PATH": f"{programs}:{os.environ['PATH']}",  # it runs airflow
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "8",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        **more,
    }
    given = [f"{name}={value}" for name, value in settings.items()]
    program = [sys.executable, str(_PROCESS_TREE), str(programs / "airflow"), "standalone"]
    return ["/usr/bin/env", *given, *program]


def dags_of(port: int) -> set[str]:
    """The DAGs that it can run now: none until all of it is there."""
    health, listed = read(port, "monitor/health"), read(port, "dags")
    ready = all(health.get(part, {}).get("status") == "healthy" for part in ("scheduler", "dag_processor"))
    return {dag["dag_id"] for dag in listed.get("dags", ())} if ready else set()


def read(port: int, path: str) -> Mapping[str, Any]:
    """A reply of its API; empty while it does not answer."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v2/{path}", timeout=10) as reply:
            found: Mapping[str, Any] = json.load(reply)
    except (OSError, ValueError):
        return {}
    return found
