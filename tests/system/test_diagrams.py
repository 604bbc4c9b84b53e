"""The diagrams in docs/pictures are drawn from the texts beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.diagrams import FOLDER, digest, digest_in

TEXTS = sorted(FOLDER.glob("*.mmd"))


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_a_diagram_is_drawn_from_its_text_as_it_is_now(text: Path) -> None:
    assert digest_in(text.with_suffix(".svg").read_text()) == digest(text.read_text()), "run `make pictures`"


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_the_ways_of_a_call_and_of_a_question_are_drawn_where_they_are_told(page: str) -> None:
    shown = (FOLDER.parents[1] / page).read_text()
    assert [text.stem for text in TEXTS if f"pictures/{text.stem}.svg" not in shown] == []
