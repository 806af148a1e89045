"""Compares the cubins of two versions of the assembler, byte for byte, on the layers that a GPU has run.

    python -m tests.same_code OLD_CHECKOUT [--shapes 40] > claims.json

A qualification is evidence about cubins. After a change of the assembler's sources that changes none of them it still
holds, so what this prints may go under "same_code" in farm/qualification/qualifications.json: a claim for each data
type whose layers all agree. The old checkout draws the layers, so that they are those which the GPU ran.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

from codegen.errors import MachineCodeError
from codegen.ir.layer_spec import DataType, spec_from_json
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import needs_clusters, stream_count
from codegen.keys import assembler_digest
from codegen.ptx.template import make_template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.qualification import QUALIFIED_LEVEL
from codegen.target.arch import virtual_arch
from codegen.toolchain.ptxas import ptxas_options, skeleton_options
from codegen.toolchain.tools import DEFAULT_LIMITS, find_toolchain
from farm.qualification.corpus import LAYERS_PER_SHAPE, Shape, draw_shape

ARCH = "sm_90"
REFUSED = "refused"


def main() -> None:
    """Prints the claims, and on stderr what was compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("--shapes", type=int, default=40, help="shapes of each data type")
    parser.add_argument("--draw", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.draw:
        made(drawn(arguments.shapes))
    elif arguments.make:
        made(map(shape_of_json, map(json.loads, sys.stdin)))
    else:
        print(json.dumps(compared(arguments.old, arguments.shapes), indent=2))


def compared(old: Path, shapes: int) -> list[dict[str, Any]]:
    """A claim for each data type of which no layer differs."""
    here = Path(__file__).parents[1]
    before = _run(old, ["--draw", "--shapes", str(shapes), "."], b"")
    lines = [json.loads(line) for line in before.splitlines()]
    halves = [before.splitlines()[i::2] for i in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda half: _run(here, ["--make", "."], b"\n".join(half)), halves))
    after = {(each["data_type"], each["number"]): each for out in outputs for each in map(json.loads, out.splitlines())}
    claims = []
    for data_type in get_args(DataType):
        same, counts = 0, Counter[str]()
        for line in (each for each in lines if each["data_type"] == data_type):
            pairs = list(zip(line["cubins"], after[data_type, line["number"]]["cubins"], strict=True))
            counts.update("same" if one == other else "differ" for one, other in pairs)
            same += sum(one == other != REFUSED for one, other in pairs)
        print(f"{data_type}: {dict(counts)}, {same} cubins the same", file=sys.stderr)
        if same and not counts["differ"]:
            digests = {"measured": lines[0]["sources"], "sources": assembler_digest()}
            kind = {"arch": ARCH, "ptxas": find_toolchain().ptxas_version, "data_type": data_type}
            claims.append({**kind, **digests, "layers": same})
    return claims


def _run(checkout: Path, arguments: list[str], given: bytes) -> bytes:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, env=environment, input=given, stdout=subprocess.PIPE, check=True).stdout


def drawn(shapes: int) -> Iterator[Shape]:
    """The first shapes of each data type."""
    for data_type in get_args(DataType):
        for number in range(shapes):
            if shape := draw_shape(number, data_type):
                yield shape


def shape_of_json(value: dict[str, Any]) -> Shape:
    """A shape that another checkout drew."""
    return Shape(value["number"], spec_from_json(value["spec"]), Tiling(**value["tiling"]), value["batch"])


def made(shapes: Iterable[Shape]) -> None:
    """Prints each shape as a line of JSON, with the digests of its layers' cubins."""
    with ThreadPoolExecutor(2) as pool:  # the skeletons' ptxas runs beside the assembler
        for shape, cubins in pool.map(lambda each: (each, _cubins(each)), shapes):
            line = {"number": shape.number, "data_type": shape.spec.data_type, "batch": shape.batch}
            line |= {"spec": shape.spec.to_json(), "tiling": shape.tiling.to_json(), "cubins": cubins}
            print(json.dumps({**line, "sources": assembler_digest()}), flush=True)


def _cubins(shape: Shape) -> list[str]:
    """The digest of each layer's cubin, or that it is refused."""
    clusters, toolchain = shape.tiling.cluster > 1, find_toolchain()
    options = skeleton_options(ptxas_options(QUALIFIED_LEVEL, clusters=clusters), clusters=clusters)
    virtual = virtual_arch(ARCH, clusters=needs_clusters(shape.tiling))
    template = make_template(shape.spec, shape.tiling, virtual, toolchain, DEFAULT_LIMITS)
    try:
        skeleton = make_skeleton(template, ARCH, toolchain, options)
        assembler = DirectAssembler.of(template, skeleton.data, ARCH)
    except MachineCodeError:
        return [REFUSED] * LAYERS_PER_SHAPE
    found, whole = [], Part(0, stream_count(shape.spec, shape.tiling))
    for variant in range(LAYERS_PER_SHAPE):
        weights = shape.weights(variant)
        try:
            cubin = assembler.assemble(weights, whole)
            found.append(hashlib.sha256(cubin.data).hexdigest())
        except MachineCodeError:
            found.append(REFUSED)
    return found


if __name__ == "__main__":
    main()
