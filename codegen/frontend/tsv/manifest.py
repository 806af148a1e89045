"""What a network of TSV files is: their order, how many neurons, biases, the clip; from a manifest or from names."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from codegen.errors import CheckpointError
from codegen.model_zoo.radixnet import BIASES, CLIP

MANIFEST = "network.json"
"""The manifest of a folder; others may lie beside it."""
MOST_FLOAT32 = float(np.finfo(np.float32).max)
_LAYER = re.compile(r"n(\d+)-l(\d+)\.tsv")
"""How the challenge names a layer: neurons, number."""


@dataclass(frozen=True)
class Manifest:
    """The layers in their order; a file may come several times."""

    name: str
    neurons: tuple[int, ...]
    """Of the input, then of each layer."""
    files: tuple[Path, ...]
    biases: tuple[float, ...]
    """Of all neurons of each layer."""
    clip: float | None


def is_tsv_network(path: Path) -> bool:
    """Whether this is a manifest, or a folder with one or with files as the challenge names them."""
    if path.is_dir():
        return (path / MANIFEST).is_file() or any(_LAYER.fullmatch(each.name) for each in path.glob("n*-l*.tsv"))
    return path.suffix == ".json" and path.is_file()


def read_manifest(path: Path) -> Manifest:
    """Of a manifest's path, or of a folder. Raises CheckpointError."""
    if path.is_dir():
        return _of_file(path / MANIFEST) if (path / MANIFEST).is_file() else _of_names(path)
    return _of_file(path)


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Writes it; the layers' files are named from its folder."""
    content = {
        "neurons": list(manifest.neurons) if len(set(manifest.neurons)) > 1 else manifest.neurons[0],
        "bias": list(manifest.biases) if len(set(manifest.biases)) > 1 else manifest.biases[0],
        "clip": manifest.clip,
        "layers": [file.relative_to(path.parent).as_posix() for file in manifest.files],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _of_file(path: Path) -> Manifest:
    try:
        content = json.loads(path.read_text())
        names, neurons, bias, clip = content["layers"], content["neurons"], content["bias"], content.get("clip", CLIP)
    except OSError as error:
        raise CheckpointError(f"{path}: it cannot be read ({error.strerror}): check its permissions") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: it is no manifest of a network ({type(error).__name__}: {error}): it needs 'layers', the TSV "
            "files in their order, 'neurons' and 'bias'"
        ) from error
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{path}: its 'layers' are not the names of TSV files: list them in their order")
    count = len(names)
    sizes = _numbers(path, "neurons", neurons, count + 1, int)
    if min(sizes) < 1:
        raise CheckpointError(f"{path}: its 'neurons' has {min(sizes)}: give numbers from 1")
    biases = _numbers(path, "bias", bias, count, (int, float))
    if beyond := [each for each in biases if not abs(each) <= MOST_FLOAT32]:
        raise CheckpointError(f"{path}: its 'bias' has {beyond[0]!r}, which is no finite float32: check the training")
    if clip is not None and (
        isinstance(clip, bool) or not isinstance(clip, int | float) or not 0 < clip <= MOST_FLOAT32
    ):
        raise CheckpointError(f"{path}: its 'clip' is {clip!r}: give a float32 above 0, or null for none")
    name = path.parent.resolve().name if path.name == MANIFEST else path.stem
    files = tuple(path.parent / each for each in names)
    return Manifest(name, tuple(sizes), files, tuple(map(float, biases)), None if clip is None else float(clip))


def _numbers(path: Path, name: str, value: Any, count: int, kinds: type | tuple[type, ...]) -> list[Any]:
    """One number for all, or as many as there are."""
    values = value if isinstance(value, list) else [value] * count
    if len(values) != count or not all(isinstance(each, kinds) and not isinstance(each, bool) for each in values):
        raise CheckpointError(f"{path}: its '{name}' is neither a number nor a list of {count}: give one of the two")
    return values


def _of_names(folder: Path) -> Manifest:
    found = sorted(
        (int(match[2]), int(match[1]), file)
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
            f"{folder}: the challenge has no bias for {neurons} neurons: write a {MANIFEST} with 'bias', 'neurons', "
            "'clip' and 'layers'"
        )
    count = len(found)
    files = tuple(file for _, _, file in found)
    return Manifest(folder.resolve().name, (neurons,) * (count + 1), files, (BIASES[neurons],) * count, CLIP)
