"""A real Chromium, and a watch on everything it asks for and complains about."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

from tests.dashboard_session import COOKIE, session_cookie

expect.set_options(timeout=120_000)  # a slow machine needs longer than the usual five seconds

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@dataclass
class Watched:
    """What a page asked for, and what went wrong on it."""

    requested: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def expect_complaint(self, page: Page, text: str) -> None:
        """The page complains of this, as it should; that is forgotten then."""
        for _ in range(2400):
            if any(text in complaint for complaint in self.complaints):
                break
            page.wait_for_timeout(50)
        else:
            pytest.fail(f"no complaint of {text}: {self.complaints}")
        self.complaints = [complaint for complaint in self.complaints if text not in complaint]

    def assert_all_well(self, service: httpx.Client) -> None:
        """Nothing went wrong, and no request left the host."""
        assert self.complaints == []
        assert self.requested
        foreign = [item for item in self.requested if not item.startswith((str(service.base_url), "data:"))]
        assert foreign == []


@pytest.fixture(scope="package")  # no longer: while it is open, no other event loop can run in this process
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
        watch(page, watched)
        yield page


@pytest.fixture
def operator_page(page: Page, service: httpx.Client, watched: Watched) -> Iterator[Page]:
    """A page of somebody who is logged in; after the test, nothing has gone wrong on it.

    It goes with ``service``: a module that overrides that fixture gets a page of its own service.
    """
    give_session(page, service)
    yield page
    watched.assert_all_well(service)


def watch(page: Page, watched: Watched) -> None:
    """Note what a page asks for, and all that goes wrong on it; a dialog is one of our strings let loose."""

    def dismissed(dialog: Dialog) -> None:
        watched.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("request", lambda request: watched.requested.append(request.url))
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("dialog", dismissed)
    page.on(
        "console",
        lambda message: (
            watched.complaints.append(message.text) if message.type in ("error", "warning") else None
        ),
    )


def give_session(page: Page, service: httpx.Client, **key: str) -> None:
    """Log a page in, without the form."""
    value = session_cookie(service, **key)
    page.context.add_cookies([{"name": COOKIE, "value": value, "url": str(service.base_url)}])
