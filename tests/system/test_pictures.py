"""docs/pictures: those of the command line are what the commands show today."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.terminal_pictures import PICTURES, draw

pytestmark = pytest.mark.usefixtures("processes")


def test_the_pictures_of_the_command_line_are_up_to_date_and_fetch_nothing(tmp_path: Path) -> None:
    drawn = draw(tmp_path)
    assert len(drawn) == 4
    for made in drawn:
        kept = PICTURES / made.name
        assert made.read_text() == kept.read_text(), f"{made.name} has changed: run make pictures, and look at it"
        assert "url(" not in kept.read_text().replace("url(#", "")
        assert "@font-face" not in kept.read_text()
