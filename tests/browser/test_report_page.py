"""The pages of `farm report` in Chromium: legible at any width, by day and by night, and on paper; asks for nothing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from cli.report.job_page import report_page
from cli.report.sweep import sweep_page
from codegen.ir.layer_spec import Conv2d, Linear, SkippedLayer
from farm.worker.messages import CubinRequest, Failure, Fault, Request, Result, failed
from tests.samples import layer
from tests.unit.farmyard import Farmyard
from tests.unit.reported import HOSTILE, reported, sweep, swept

PHONE, DESKTOP = 360, 1280
ARCHS = ("sm_75", "sm_80", "sm_90", "sm_120")
LONG = "/model/layers.11/self_attn/" + "q_proj" * 30


def refuse_last(request: Request) -> Result | None:
    bad = isinstance(request, CubinRequest) and request.arch == "sm_120"
    error = f"ptxas: {'/a/very/long/path' * 20}: {HOSTILE}"
    return failed(request, Failure(Fault.INPUT, error)) if bad else None


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of a job and of a submission that are hard to lay out: many layers, long and hostile names, failures."""
    folder = tmp_path_factory.mktemp("report")
    yard = Farmyard(folder)
    layers = [layer(f"block{i}.conv", Conv2d(8, 8, 8, 8 + i, 3, 3), seed=i) for i in range(40)]
    layers += [replace(layer(LONG, Linear(600, 300)), folded=(f"Add {LONG}",)), layer(HOSTILE, Linear(20, 10))]
    skipped = (SkippedLayer(LONG, "Conv", f"it is {LONG}", 10, 10),)
    found = reported(yard, *layers, name=HOSTILE, archs=ARCHS, skipped=skipped, play=refuse_last)
    sharing = layer(LONG, Linear(600, 300))
    jobs = swept(yard, {f"{HOSTILE}-{i}": (layer(seed=i), sharing) for i in range(12)}, HOSTILE)
    yard.run(jobs[:10], refuse_last)
    documents = {"job": report_page(found), "submission": sweep_page(sweep(yard))}
    yard.ledger.close()
    for name, document in documents.items():
        (folder / f"{name}.html").write_text(document)
    return {name: folder / f"{name}.html" for name in documents}


@pytest.fixture(scope="module")
def path(pages: dict[str, Path]) -> Path:
    return pages["job"]


class Visit:
    """A page that is open, and what was heard of it."""

    def __init__(self, browser: Browser, path: Path, width: int, scheme: str = "light") -> None:
        self.heard: list[str] = []
        self.requests: list[str] = []
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.on("console", lambda message: self.heard.append(message.text))
        self.page.on("pageerror", lambda error: self.heard.append(str(error)))
        self.page.on("dialog", lambda dialog: self.heard.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = path.as_uri()
        self.page.goto(self.address)

    def pixels(self) -> np.ndarray:
        with Image.open(io.BytesIO(self.page.screenshot())) as image:
            return np.asarray(image.convert("RGB"))


@pytest.fixture(params=[PHONE, DESKTOP])
def width(request: pytest.FixtureRequest) -> int:
    width: int = request.param
    return width


@pytest.fixture(params=["job", "submission"])
def visit(request: pytest.FixtureRequest, browser: Browser, pages: dict[str, Path], width: int) -> Iterator[Visit]:
    visit = Visit(browser, pages[request.param], width)
    yield visit
    visit.page.close()


def test_the_page_is_drawn_without_a_word_on_the_console_and_without_a_request(visit: Visit) -> None:
    pixels = visit.pixels()
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
    assert (pixels != pixels[0, 0]).any(axis=2).mean() > 0.02
    assert visit.heard == []
    assert [url for url in visit.requests if not url.startswith("data:")] == [visit.address]


def test_nothing_is_wider_than_the_window(visit: Visit) -> None:
    wide = visit.page.evaluate(
        """() => [...document.querySelectorAll('body *')]
            .filter(each => each.getBoundingClientRect().right > window.innerWidth + 0.5)
            .filter(each => !each.closest('.strip'))
            .map(each => each.outerHTML.slice(0, 120))"""
    )
    assert wide == []
    assert visit.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_each_picture_is_there_and_has_words(visit: Visit) -> None:
    images = visit.page.evaluate(
        "() => [...document.images].map(each => [each.complete && each.naturalWidth > 0, each.alt])"
    )
    assert len(images) == (42 if "job" in visit.address else 0)
    assert all(drawn and words for drawn, words in images)
    assert visit.page.evaluate("() => [...document.querySelectorAll('[role=img]')].every(each => each.ariaLabel)")


def test_text_is_large_enough_to_read(visit: Visit) -> None:
    sizes = visit.page.evaluate(
        """() => [...document.querySelectorAll('body *')]
            .filter(each => [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
            .map(each => parseFloat(getComputedStyle(each).fontSize))"""
    )
    assert min(sizes) >= 12


def test_the_widths_of_a_strip_are_the_times(browser: Browser, path: Path) -> None:
    visit = Visit(browser, path, DESKTOP)
    found = visit.page.evaluate(
        """() => [...document.querySelector('.strip').children]
            .map(each => [each.getBoundingClientRect().width, parseFloat(each.style.flexGrow)])"""
    )
    widths, times = np.array(found).T
    assert len(widths) == 42
    np.testing.assert_allclose(widths / widths.sum(), times / times.sum(), rtol=0.02)
    visit.page.close()


def test_a_layer_of_the_strip_leads_to_what_is_said_of_it(browser: Browser, path: Path) -> None:
    visit = Visit(browser, path, PHONE)
    visit.page.locator(".strip a").nth(41).click()
    target = visit.page.locator("article:target")
    assert HOSTILE in target.inner_text()
    assert visit.heard == []
    visit.page.close()


def test_text_stands_out_from_what_is_behind_it_by_day_and_by_night(browser: Browser, path: Path) -> None:
    backgrounds = []
    for scheme in ("light", "dark"):
        visit = Visit(browser, path, DESKTOP, scheme)
        ink, page = (
            visit.page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
        )
        backgrounds.append(page)
        assert contrast(ink, page) >= 7
        for kind in (".quiet", ".status", ".strip a span", ".layer dt", ".cubins td", "small", "figcaption"):
            assert visit.page.evaluate(CONTRAST, kind) >= 4.5, (scheme, kind)
        visit.page.close()
    assert luminance(backgrounds[0]) > 0.8
    assert luminance(backgrounds[1]) < 0.05


def test_it_is_printed_in_dark_letters_on_several_pages_from_a_dark_screen_too(browser: Browser, path: Path) -> None:
    visit = Visit(browser, path, DESKTOP, "dark")
    paper = visit.page.pdf(format="A4")
    assert paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page ") >= 2
    visit.page.emulate_media(media="print")
    ink, page = (
        visit.page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
    )
    assert luminance(ink) < 0.05
    assert luminance(page) > 0.95
    assert visit.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    visit.page.close()


CONTRAST = """kind => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(Number)
      .map(each => each / 255).map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = each => {
    for (; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (!colour.endsWith(', 0)')) return colour;
    }
  };
  return Math.min(...[...document.querySelectorAll(kind)].map(each => {
    const [a, b] = [light(getComputedStyle(each).color), light(behind(each))].sort((a, b) => b - a);
    return (a + 0.05) / (b + 0.05);
  }));
}"""
"""The lowest contrast of elements, text against the nearest background, as WCAG defines it."""


def luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
