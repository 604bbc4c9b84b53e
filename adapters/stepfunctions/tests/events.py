"""Events of histories, written as AWS tells them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

TOKEN: Final = "AQCEAAAAKgAAAAMAAAAAAAAAAe-not-for-anybodys-eyes"
FORM: Final = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
ENVELOPE: Final = {"mcpInput": {"message": "Ship it?", "requestedSchema": FORM}, "taskToken": TOKEN}

_DETAILS: Final[Mapping[str, str]] = {
    "StateEntered": "stateEnteredEventDetails",
    "StateExited": "stateExitedEventDetails",
}


class Telling:
    """A history as it grows; each method returns the id of the event it adds, to be named by the next."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.add("ExecutionStarted", 0)

    def add(self, kind: str, before: int, **details: Any) -> int:
        """An event of any type; what it tells is in the field that belongs to the type."""
        event: dict[str, Any] = {"id": len(self.events) + 1, "previousEventId": before, "type": kind}
        if details:
            shared = (field for end, field in _DETAILS.items() if kind.endswith(end))
            event[next(shared, f"{kind[0].lower()}{kind[1:]}EventDetails")] = details
        self.events.append(event)
        return len(self.events)

    def enter(self, before: int, name: str, kind: str = "Task") -> int:
        return self.add(f"{kind}StateEntered", before, name=name)

    def leave(self, before: int, name: str, kind: str = "Task") -> int:
        return self.add(f"{kind}StateExited", before, name=name)

    def schedule(self, before: int, parameters: Any = None) -> int:
        """A task that waits for its token, in SQS's words."""
        text = json.dumps({"QueueUrl": "q", "MessageBody": ENVELOPE} if parameters is None else parameters)
        return self.add(
            "TaskScheduled", before, resource="sendMessage.waitForTaskToken", resourceType="sqs", parameters=text
        )

    def submit(self, scheduled: int) -> int:
        """What follows once the message is sent: only now somebody can answer."""
        return self.add("TaskSubmitted", self.add("TaskStarted", scheduled))

    def ask(self, before: int, name: str = "Ask", parameters: Any = None) -> tuple[int, int]:
        """A state that asks: the id of the question, and the latest event of it."""
        scheduled = self.schedule(self.enter(before, name), parameters)
        return scheduled, self.submit(scheduled)

    def answered(self, latest: int, name: str = "Ask") -> int:
        """It is answered, and left."""
        return self.leave(self.add("TaskSucceeded", latest, output="{}"), name)
