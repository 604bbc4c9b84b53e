"""Deploys the state machines of the conformance fixtures; they do all their work themselves.

You would deploy with CDK, SAM or Terraform: this is the same with boto3 alone.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import boto3

ROLE = os.environ.get("STATES_ROLE_ARN", "arn:aws:iam::123456789012:role/conformance")  # may put events


def deploy(states: Any) -> None:  # Any: a client of boto3, which has no types
    """Create the state machines of this folder, or bring them up to date."""
    there = states.get_paginator("list_state_machines").paginate().build_full_result()["stateMachines"]
    arns = {machine["name"]: machine["stateMachineArn"] for machine in there}
    for file in sorted(Path(__file__).parent.glob("*.asl.json")):
        name = file.name.removesuffix(".asl.json")
        what = {"definition": file.read_text(), "roleArn": ROLE}
        if name in arns:
            states.update_state_machine(stateMachineArn=arns[name], **what)
        else:
            states.create_state_machine(name=name, **what)


def main() -> None:
    """Deploy, then wait for SIGTERM or SIGINT."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopped.set())
    deploy(boto3.client("stepfunctions"))  # pyright: ignore[reportUnknownMemberType]
    print("deployed; there is nothing else to do", flush=True)
    stopped.wait()


if __name__ == "__main__":
    main()
