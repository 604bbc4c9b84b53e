"""Two people and a release, as they see it: `python demo.py URL DEVELOPER_TOKEN_FILE MANAGER_TOKEN_FILE`.

The developer calls the tool and waits. The manager, at another host, finds the open question and answers it. Both use
the command line client.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = str(Path(sys.executable).with_name("mcp-workflows"))
PATIENCE: Final = 120.0  # seconds until the question is there


def main() -> int:
    """Exit code 0 if the release came to its end."""
    url, developer, manager = sys.argv[1:]
    at_developer, at_manager = ["--url", url, "--token-file", developer], ["--url", url, "--token-file", manager]
    release = _command("call", "release", "version=1.4.0", *at_developer)
    print("the developer:", _shown(release), flush=True)
    with subprocess.Popen(release) as calling:
        try:
            task, key, form = _question(at_manager, calling)
            content = {"reason": "staging looks good"}
            if "option" in form["properties"]:  # Airflow's own approval
                content = {"option": "Approve", **content}
            answer = ["call", "task_answer", f"taskId={task}", f"key={key}", f"content:={json.dumps(content)}"]
            print("the manager:", _shown(_command(*answer, *at_manager)), flush=True)
            subprocess.run(_command(*answer, *at_manager), check=True, stdout=subprocess.DEVNULL)
            return calling.wait(PATIENCE)
        finally:
            calling.kill()


def _command(*words: str) -> list[str]:
    return [PROGRAM, *words]


def _shown(command: list[str]) -> str:
    return shlex.join(["mcp-workflows", *command[1:]])


def _question(at: list[str], calling: subprocess.Popen[bytes]) -> tuple[str, str, dict[str, Any]]:
    """The first question that is open for the manager: its task, its key and its form."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and calling.poll() is None:
        done = subprocess.run(_command("call", "open_questions", "--json", *at), check=True, capture_output=True)
        found: dict[str, Any] = json.loads(done.stdout)
        for task in found["result"]["structuredContent"]["tasks"]:
            [(key, question)] = task["questions"].items()
            return task["taskId"], key, question["schema"]
        time.sleep(0.5)
    raise SystemExit("nobody asked anything")


if __name__ == "__main__":
    sys.exit(main())
