"""Find Chromium, for the tests of the run card and for pictures; `scripts/install-browser` installs Debian's."""

from __future__ import annotations

import os
import shutil
from typing import Final

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
LAUNCH: Final = ("--no-sandbox", "--font-render-hinting=none") if os.geteuid() == 0 else ("--font-render-hinting=none",)
"""Arguments for Chromium; it refuses to start as root with its sandbox."""


def chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, _NAMES)), None)
