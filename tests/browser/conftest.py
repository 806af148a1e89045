"""A real browser, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.needs import CHROMIUM, lacks_chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if reason := lacks_chromium():
        pytest.skip(reason)
    with sync_playwright() as playwright:
        # As root, in containers too, Chromium has no sandbox; what it opens here are pages that the tests wrote.
        browser = playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()
