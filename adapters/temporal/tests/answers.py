"""Answers to questions and what is wrong with them: one truth for the workflow-side code of every language."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A response to a form; a complaint is part of what is said against one of them, if anything is."""

    form: Any
    response: Any
    complaint: str | None

    @property
    def filled(self) -> bool:
        """Whether the response says that the form was filled in."""
        return json.dumps(self.response).startswith('{"action": "accept"')


CASES = [Case(**case) for case in json.loads(Path(__file__).with_name("answers.json").read_text())]
FORMS_NO_CLIENT_CAN_SHOW = ("the schema of an object", "'nested'", "'untyped'")
QUESTIONS = [case for case in CASES if case.complaint not in FORMS_NO_CLIENT_CAN_SHOW]
BAD_FORMS = [case for case in CASES if case.complaint in FORMS_NO_CLIENT_CAN_SHOW]
