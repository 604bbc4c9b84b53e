"""docs/pictures: diagrams are drawn from the texts beside them, and pictures of commands are what these show today."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.diagrams import FOLDER, digest, digest_in
from scripts.terminal_pictures import PICTURES, draw

TEXTS = sorted(FOLDER.glob("*.mmd"))


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_a_diagram_is_drawn_from_its_text_as_it_is_now(text: Path) -> None:
    assert digest_in(text.with_suffix(".svg").read_text()) == digest(text.read_text()), "run `make pictures`"


def test_the_ways_of_a_call_and_of_a_question_are_drawn_where_they_are_told() -> None:
    shown = (FOLDER.parent / "why" / "architecture.md").read_text()
    assert [text.stem for text in TEXTS if f"pictures/{text.stem}.svg" not in shown] == []


@pytest.mark.slow
def test_the_pictures_of_the_command_line_are_up_to_date_and_fetch_nothing(tmp_path: Path) -> None:
    drawn = draw(tmp_path)
    assert len(drawn) == 4
    for made in drawn:
        kept = PICTURES / made.name
        assert made.read_text() == kept.read_text(), f"{made.name} has changed: run make pictures, and look at it"
        assert "url(" not in kept.read_text().replace("url(#", "")
        assert "@font-face" not in kept.read_text()
