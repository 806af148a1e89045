"""Folders are named for what a machine must have. Where it lacks that, their tests are skipped and say so."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from tests.needs import NEEDS, lacks_ray, lacks_toolchain, missing
from tests.templates import open_shared_folder

TESTS = Path(__file__).parent
DRAWN_LAYERS = "drawn layers"
"""The property under which a test says what it has compared."""

# How long one example takes says more about what else the machine does than about the code.
settings.register_profile("farm", deadline=None)
settings.load_profile("farm")


@pytest.fixture
def shipped_qualifications() -> None:
    """Uses the shipped qualification records, stale or not."""


@pytest.fixture(autouse=True)
def _nothing_qualified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the shipped records: the choice of assembler must not depend on whether they are stale."""
    if "shipped_qualifications" not in request.fixturenames:
        monkeypatch.setattr("farm.ledger.qualification.shipped_records", lambda: ())
        monkeypatch.setattr("farm.reports.doctor.shipped_records", lambda: ())


@pytest.fixture(scope="session", autouse=True)
def _templates() -> None:
    """Templates and cubins are kept for later tests, processes and runs."""
    open_shared_folder()


WHOLLY: dict[str, Callable[[], str | None]] = {
    "cluster": lacks_ray,
    "differential": lacks_toolchain,
    "models": lacks_toolchain,
    "real_models": lacks_toolchain,
    "toolchain": lacks_toolchain,
}
"""Folders of which no test runs without this; tests of the others ask themselves."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Says before the first test what will be left out: slow tests, and folders, wholly or in part, with the reason."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    if session.config.option.markexpr == "not slow":
        reporter.write_line("will leave slow tests to make test-all")
    wanted = [Path(argument.partition("::")[0]).resolve() for argument in session.config.args]
    for folder in sorted(NEEDS):
        path = TESTS / folder
        asked = any(path.is_relative_to(each) or each.is_relative_to(path) for each in wanted)
        if (
            asked
            and (reasons := missing(folder))
            and not (folder in ("packages", "real_models") and session.config.getoption("--install"))
        ):
            reporter.write_line(f"will skip tests/{folder}: {'; '.join(reasons)}")


def pytest_configure() -> None:
    os.environ.pop("COLUMNS", None)  # of xdist's workers: what a test prints goes to a pipe, which has no width


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skip-nothing", action="store_true", help="a test that is skipped is a failure")
    parser.addoption("--install", action="store_true", help="install packages too, which takes minutes and a network")
    parser.addoption("--every-sparsity", action="store_true", help="whole networks at 0.8 and 0.95 too")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(TESTS):
            lacks = WHOLLY.get(item.path.relative_to(TESTS).parts[0])
            if lacks and (reason := lacks()):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--skip-nothing") and not hasattr(session.config, "workerinput"):
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if session.exitstatus == pytest.ExitCode.OK and reporter.stats.get("skipped"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the number of drawn layers that all processes compared."""
    passed = terminalreporter.getreports("passed")
    found = [json.loads(value) for each in passed for name, value in each.user_properties if name == DRAWN_LAYERS]
    if not found:
        return
    layers: Counter[str] = Counter()
    for each in found:
        layers[each["operator"]] += each["layers"]
    by_onnxruntime = sum(each["layers"] for each in found if each["onnxruntime"])
    terminalreporter.write_line(
        f"{layers.total()} drawn layers agree ({', '.join(f'{name} {n}' for name, n in sorted(layers.items()))}), "
        f"{by_onnxruntime} of them with onnxruntime; the largest difference is "
        f"{max(each['worst'] for each in found):.2f} of its bound"
    )
