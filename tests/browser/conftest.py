"""A real Chromium, and a watch on everything it asks for and complains about."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@dataclass
class Watched:
    """What a page asked for, and what went wrong on it."""

    requested: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")  # no longer: while it is open, no other event loop can run in this process
def browser() -> Iterator[Browser]:
    found = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    path = next(found, None)
    if path is None and "CI" not in os.environ:
        pytest.skip("no Chromium or Chrome on this machine; `make test` installs it on Debian")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def page(browser: Browser, service: httpx.Client, watched: Watched) -> Iterator[Page]:
    with browser.new_context(base_url=str(service.base_url)) as context:
        page = context.new_page()
        page.on("request", lambda request: watched.requested.append(request.url))
        page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        page.on(
            "console",
            lambda message: watched.complaints.append(message.text) if message.type == "error" else None,
        )
        yield page
