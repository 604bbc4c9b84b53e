"""The Python side of the shared truth about answers: see answers.json."""

from __future__ import annotations

import pytest
from mcp_workflows_temporal_worker.forms import content_error, form

from adapters.temporal.tests.answers import BAD_FORMS, QUESTIONS, Case

FILLED = [case for case in QUESTIONS if case.filled]


@pytest.mark.parametrize("case", FILLED)
def test_what_was_filled_in_is_checked_against_the_form(case: Case) -> None:
    content = case.response.get("content")
    wrong = content_error(form(case.form), {} if content is None else content)
    assert (case.complaint is None) == (wrong is None)
    assert (case.complaint or "") in (wrong or "")


@pytest.mark.parametrize("case", BAD_FORMS)
def test_a_form_no_client_can_show_is_refused(case: Case) -> None:
    with pytest.raises(ValueError, match=case.complaint):
        form(case.form)
