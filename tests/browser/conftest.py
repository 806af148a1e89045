"""A real browser, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = "chromium"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = shutil.which(CHROMIUM)
    if found is None:
        pytest.skip("needs Debian's chromium: make services")
    with sync_playwright() as playwright:
        # As root, in containers too, Chromium has no sandbox; what it opens here are pages that the tests wrote.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
