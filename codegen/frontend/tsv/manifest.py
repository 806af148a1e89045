"""Manifest of a TSV network: order of the files, numbers of neurons, biases and clip, from JSON or from file names."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from codegen.errors import CheckpointError
from codegen.frontend.tsv.files import read_file, read_inside

MANIFEST = "network.json"
"""Name of a folder's manifest; manifests of other names are given by path."""
CLIP = 32.0
"""The Graph Challenge's upper bound of activations, the default of a manifest."""
BIASES = {1024: -0.3, 4096: -0.35, 16384: -0.4, 65536: -0.45}
"""The Graph Challenge's biases by number of neurons."""
MOST_BYTES = 2**24
"""Largest manifest."""
MOST_NEURONS = 2**20
"""Most neurons of a layer, 16 times the Graph Challenge's."""
MOST_FLOAT32 = float(np.finfo(np.float32).max)
_LAYER = re.compile(r"n(\d+)-l(\d+)\.tsv")
"""The Graph Challenge's file names of layers: neurons, number."""


@dataclass(frozen=True)
class Manifest:
    """Description of a TSV network."""

    name: str
    neurons: tuple[int, ...]
    """Neurons of the input, then of each layer."""
    folder: Path
    files: tuple[str, ...]
    """File of each layer, relative to the folder; files may repeat."""
    biases: tuple[float, ...]
    """Bias of each layer, equal for all its neurons."""
    clip: float | None
    """Upper bound of activations; None without one."""


def is_tsv_network(path: Path) -> bool:
    """Whether a path is a manifest, or a folder with a manifest or with files named as in the Graph Challenge."""
    try:
        if path.is_dir():
            return (path / MANIFEST).is_file() or any(_LAYER.fullmatch(each.name) for each in path.glob("n*-l*.tsv"))
        return path.suffix == ".json" and path.is_file()
    except OSError:  # reading the path as an ONNX file raises it again, as a CheckpointError
        return False


def read_manifest(path: Path) -> Manifest:
    """The manifest at a path, or of a folder. Raises CheckpointError, naming the file."""
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            return _from_names(path)
        return _parse(path / MANIFEST, read_inside(path, MANIFEST, MOST_BYTES))
    return _parse(path, read_file(path, MOST_BYTES))


def write_manifest(manifest: Manifest) -> Path:
    """Writes a manifest into its folder, and returns its path."""
    content = {
        "neurons": list(manifest.neurons) if len(set(manifest.neurons)) > 1 else manifest.neurons[0],
        "bias": list(manifest.biases) if len(set(manifest.biases)) > 1 else manifest.biases[0],
        "clip": manifest.clip,
        "layers": list(manifest.files),
    }
    path = manifest.folder / MANIFEST
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def _parse(path: Path, data: bytes) -> Manifest:
    try:
        content = json.loads(data)
        names, neurons, bias, clip = content["layers"], content["neurons"], content["bias"], content.get("clip", CLIP)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not a manifest of a TSV network ({type(error).__name__}: {error}): it needs 'layers' (the TSV "
            "files in order), 'neurons' and 'bias'"
        ) from error
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{path}: 'layers' is not a list of file names: list the TSV files in order")
    count = len(names)
    sizes = _numbers(path, "neurons", neurons, count + 1, int)
    if wrong := [each for each in sizes if not 1 <= each <= MOST_NEURONS]:
        raise CheckpointError(f"{path}: 'neurons' has {wrong[0]}: give numbers from 1 to {MOST_NEURONS}")
    biases = _numbers(path, "bias", bias, count, (int, float))
    if beyond := [each for each in biases if not abs(each) <= MOST_FLOAT32]:
        raise CheckpointError(f"{path}: 'bias' has {beyond[0]!r}, not a finite float32: check the training")
    if clip is not None and (
        isinstance(clip, bool) or not isinstance(clip, int | float) or not 0 < clip <= MOST_FLOAT32
    ):
        raise CheckpointError(f"{path}: 'clip' is {clip!r}: give a float32 above 0, or null for none")
    name = path.parent.resolve().name if path.name == MANIFEST else path.stem
    files = tuple(str(PurePosixPath(each)) for each in names)
    return Manifest(
        name, tuple(sizes), path.parent, files, tuple(map(float, biases)), None if clip is None else float(clip)
    )


def _numbers(path: Path, name: str, value: Any, count: int, kinds: type | tuple[type, ...]) -> list[Any]:
    """The values of a field that is one number for all layers, or a list of `count`. Raises CheckpointError."""
    values = value if isinstance(value, list) else [value] * count
    if len(values) != count or not all(isinstance(each, kinds) and not isinstance(each, bool) for each in values):
        raise CheckpointError(f"{path}: '{name}' is neither a number nor a list of {count}: give one of the two")
    return values


def _from_names(folder: Path) -> Manifest:
    found = sorted(
        (int(match[2]), int(match[1]), file.name)
        for file in folder.glob("n*-l*.tsv")
        if (match := _LAYER.fullmatch(file.name))
    )
    sizes = {neurons for _, neurons, _ in found}
    if len(sizes) > 1 or [number for number, _, _ in found] != list(range(1, len(found) + 1)):
        raise CheckpointError(
            f"{folder}: its TSV files are not the layers 1, 2, ... of one network: write a {MANIFEST} that lists them"
        )
    [neurons] = sizes
    if neurons not in BIASES:
        raise CheckpointError(
            f"{folder}: the Graph Challenge has no bias for {neurons} neurons: write a {MANIFEST} with 'bias', "
            "'neurons', 'clip' and 'layers'"
        )
    count = len(found)
    files = tuple(file for _, _, file in found)
    return Manifest(folder.resolve().name, (neurons,) * (count + 1), folder, files, (BIASES[neurons],) * count, CLIP)
