"""The site of the documentation, built with addresses and opened in Chromium."""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

import pytest
from playwright.sync_api import Browser, sync_playwright

from scripts import site
from scripts.site import Addresses
from tests.support import commands
from tests.support.environments import LAUNCH, chromium

ROOT: Final = Path(__file__).parents[2]
PUBLISHED: Final = Addresses(
    repository="https://github.com/acme/mcp-workflows", site="https://acme.github.io/mcp-workflows"
)
pytestmark = [
    pytest.mark.slow,  # installs Zensical, once
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium: scripts/install-browser installs Debian's"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    tools = commands.run([str(ROOT / "scripts" / "install-tools")], cwd=ROOT).stdout.strip()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "WORK", folder / "work")
        patch.setattr(site, "SITE", folder / "site")
        assert site.build(str(ROOT / tools / "zensical"), PUBLISHED) == 0
    return folder / "site"


@pytest.fixture(scope="module")
def url(built: Path) -> Generator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(built))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is that of the base
        pass


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=list(LAUNCH))
        yield running
        running.close()


def test_pages_fetch_nothing_from_elsewhere_and_link_the_repository(url: str, browser: Browser) -> None:
    page = browser.new_page()
    fetched = list[str]()
    page.on("request", lambda request: fetched.append(request.url))
    for place in ("/", "/use/hosts/", "/why/architecture/"):
        page.goto(url + place, wait_until="networkidle")
    assert fetched
    assert [each for each in fetched if not each.startswith(url)] == []
    assert page.locator(f'a[href="{PUBLISHED.repository}"]').count() == 1
    page.close()


def test_why_opens_the_architecture_and_lists_benchmarks_and_decisions(url: str, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(url)
    page.locator(".md-tabs__link", has_text="Why").click()
    page.wait_for_url("**/why/architecture/")
    sidebar = page.locator(".md-sidebar--primary")
    for title in ("Architecture", "Benchmarks", "Decisions"):
        assert sidebar.get_by_role("link", name=title, exact=True).first.is_visible(), title
    page.close()


def test_a_phone_shows_more_of_a_table_than_its_keys(url: str, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 375, "height": 800})
    page.goto(f"{url}/configure/tools/")
    widths: list[float] = page.locator("td:first-child").evaluate_all("cells => cells.map(each => each.offsetWidth)")
    assert max(widths) <= 375 / 2
    page.close()


def test_links_of_the_text_for_models_lead_to_pages_of_the_site(built: Path) -> None:
    text = re.sub(r"(?ms)^ *```.*?^ *```$|`[^`\n]+`", "", (built / "llms-full.txt").read_text())
    links = re.findall(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)", text)
    for link in (first or second for first, second in links):
        assert re.match(r"https?://|mailto:", link), link
        if link.startswith(PUBLISHED.site):
            place = link.removeprefix(PUBLISHED.site).partition("#")[0]
            assert (built / place.strip("/")).exists(), link


def test_a_diagram_is_described_and_its_lines_are_light_in_dark_mode(url: str, browser: Browser) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(f"{url}/why/architecture/")
    diagram = page.locator('img[src$="architecture-1.svg"]')
    assert diagram.get_attribute("alt") == 'Diagram: Packages. An arrow means "imports".'
    assert "invert" in diagram.evaluate("image => getComputedStyle(image).filter")
    page.close()
