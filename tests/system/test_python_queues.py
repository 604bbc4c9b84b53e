"""The page about Python queues: the sample is what it shows, runs as it says, and keeps the laws with real workers."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.system.test_custom_adapter import counted, install, pytest_in, run

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "samples" / "queue"
PAGE = ROOT / "docs" / "engines" / "python-queues.md"
LINKED = ("payments/adapter.py", "payments/runs.py", "tests/test_contract.py")
PASSED = 26  # the laws, and three tests of its own


def blocks(language: str) -> Sequence[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment in which the sample's package is installed, with a folder for its queue."""
    folder = str(tmp_path_factory.mktemp("queue"))
    return {**install(SAMPLE, tmp_path_factory.mktemp("installed")), "PAYMENTS_FOLDER": folder}


def test_the_page_shows_the_sample() -> None:
    files = [path.read_text() for path in SAMPLE.rglob("*.*") if path.suffix in {".py", ".toml"}]
    shown = [*blocks("python"), *blocks("toml")]
    assert [name for name in LINKED if f"](../../samples/queue/{name})" not in PAGE.read_text()] == []
    for block in shown:
        assert block in "\n".join(files), f"not in the sample:\n{block}"


@pytest.mark.slow
def test_a_real_queue_keeps_the_laws(installed: Mapping[str, str]) -> None:
    done = pytest_in(SAMPLE, installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert counted(done.stdout)["passed"] >= PASSED


def test_the_pages_commands_pay_an_invoice_when_a_person_approves(installed: Mapping[str, str], tmp_path: Path) -> None:
    _, consumer, call, _ = blocks("sh")[0].splitlines()
    (tmp_path / "workflows.yaml").write_bytes((SAMPLE / "workflows.yaml").read_bytes())
    with subprocess.Popen(shlex.split(consumer.removesuffix(" &")), cwd=tmp_path, env=installed) as workers:
        try:
            paid = run([*shlex.split(call), "--answer", "approved=true"], tmp_path, installed)
        finally:
            workers.terminate()
    assert paid.returncode == 0, paid.stderr
    assert json.loads(paid.stdout) == {"invoice": "A-1", "paid": 5000}
