"""Launches: what is written of one is read back, and a record of before launches were kept is a miss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from codegen.launch import Launch
from codegen.spec import DataType
from farm.store.memory import MemoryStore
from farm.worker.build import CUBIN_STAGE, find_cubin
from farm.worker.requests import CubinFacts
from tests.samples import LAUNCH

OLD_RECORD = Path(__file__).parent.parent / "golden" / "cubin_record_without_launch.json"
"""As the version of key schema 3 wrote it."""
KEY = "5a" * 32


@pytest.mark.parametrize("data_type", get_args(DataType))
def test_a_launch_is_read_back_as_it_was_written(data_type: DataType) -> None:
    names = ("input", "output", "residual", "images")
    for launch in (LAUNCH, replace(LAUNCH, arguments=names, data_type=data_type)):
        assert Launch.from_json(json.loads(json.dumps(launch.to_json()))) == launch


@pytest.mark.parametrize(
    "damage",
    [
        {"grid": [{"fixed": 1, "images": None}]},
        {"grid": [{"blocks": 1}] * 3},
        {"block": [32, 1]},
        {"block": None},
        {"shared_bytes": "many"},
        {"arguments": []},
        {"arguments": [{"name": "input", "type": "float64*"}]},
        {"arguments": [{"name": "input", "type": "float32*"}, {"name": "output", "type": "float16*"}]},
    ],
)
def test_what_is_no_launch_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Launch.from_json({**LAUNCH.to_json(), **damage})


def test_a_record_is_a_hit_with_its_launch_and_a_miss_without_one() -> None:
    store = MemoryStore()
    old = json.loads(OLD_RECORD.read_text())
    blob = store.put(b"cubin")
    store.put_record(CUBIN_STAGE, KEY, {**old, "cubin": blob})
    assert find_cubin(store, KEY) is None
    store.put_record(CUBIN_STAGE, KEY, {**old, "cubin": blob, "launch": LAUNCH.to_json()})
    found = find_cubin(store, KEY)
    assert found is not None
    assert isinstance(found.made, CubinFacts)
    assert found.made.launch == LAUNCH
