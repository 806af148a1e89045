"""The live page in Chromium: it changes by itself, fits a phone, and runs nothing that a name says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from cli.report.live_server import LiveServer
from farm.api import Farm
from tests.unit.farmyard import Farmyard
from tests.unit.reported import HOSTILE

PHONE, DESKTOP = 360, 1280
TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Farmyard]:
    yard = Farmyard(tmp_path)
    yard.run(yard.submit("finished", HOSTILE, "long" * 60))
    worker = {"node": "n" * 200, "cpus": 1, "running": 1, "pending": 0, "finished": 0, "failed": 0, "reason": HOSTILE}
    yard.ledger.coordinators.register("c", HOSTILE, serves=True, lease_seconds=60)
    yard.ledger.coordinators.beat("c", 60, [worker])
    yield yard
    yard.ledger.close()


@pytest.fixture
def live(yard: Farmyard) -> Iterator[LiveServer]:
    with LiveServer(Farm(yard.settings, yard.store, yard.ledger), "127.0.0.1", 0, token=TOKEN) as server:
        yield server


@pytest.fixture(params=[PHONE, DESKTOP])
def page(request: pytest.FixtureRequest, browser: Browser, live: LiveServer) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    page = context.new_page()
    page.set_default_timeout(15_000)
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("dialog", lambda dialog: heard.append(dialog.message))
    page.goto(f"{live.address}/?token={TOKEN}")
    yield page
    assert heard == []
    context.close()


def test_it_changes_without_being_loaded_again_and_fits_the_window(page: Page, yard: Farmyard) -> None:
    page.get_by_text("Live", exact=True).wait_for()
    assert TOKEN not in page.url
    yard.submit("arrives")
    page.get_by_role("link", name="arrives").wait_for()
    assert page.title() == "Sparse compile farm"
    wide = page.evaluate(
        """() => [...document.querySelectorAll('body *')]
            .filter(each => each.getBoundingClientRect().right > window.innerWidth + 0.5)
            .map(each => each.outerHTML.slice(0, 120))"""
    )
    assert wide == []
    sizes = page.evaluate(
        "() => [...document.querySelectorAll('p, a, b')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 12


def test_a_job_leads_to_its_report(page: Page) -> None:
    page.get_by_role("link", name="finished").click()
    page.get_by_role("heading", name="Layers").wait_for()
    assert "/jobs/" in page.url


def test_a_connection_that_is_lost_is_told(page: Page, live: LiveServer) -> None:
    page.get_by_text("Live", exact=True).wait_for()
    page.evaluate("events.dispatchEvent(new Event('error'))")
    assert page.locator("#connection").inner_text() == "Connection lost, trying again"
