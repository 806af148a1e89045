"""Facts of a benchmark's GPU, and the rest between replays."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.bench.environment import clocks
from farm.cuda import graph


def test_clocks_are_those_of_the_gpu_that_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\n[ "$1 $2" = "-i 0000:41:00.0" ] && echo "580.1, 1980 MHz, 1980 MHz, 3201 MHz, 700 W, 41"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    read = clocks("0000:41:00.0")
    assert (read["driver_version"], read["clocks.sm"], read["temperature.gpu"]) == ("580.1", "1980 MHz", "41")
    assert clocks("0000:00:00.0") == {}


def test_without_nvidia_smi_nothing_is_said_of_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert clocks("0000:41:00.0") == {}


def test_the_gpu_rests_for_twice_the_time_of_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(graph.time, "sleep", slept.append)
    graph.cool_down(4500.0)
    assert slept == [pytest.approx(0.009)]
