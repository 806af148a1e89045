"""When the code of a network's layers is fetched into the L2 cache: early enough, and not too early. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

from codegen.ir.launch import Launch

WARP = 32
LEAST_BYTES = 100_000
"""Of a layer's code: less comes soon enough by itself."""
FETCHED_BYTES = 1_500_000.0
"""In a microsecond, from DRAM, while layers run."""
INSTRUCTION_BYTES = 16
ISSUED = 4700.0
"""Instructions in a microsecond that a multiprocessor issues to warps which follow one stream."""
FOLLOWED = 300.0
"""Of these the different ones: as fast as a stream comes from the L2 cache."""
LAUNCH_MICROSECONDS = 2.0
SLEPT = 0.6
"""Share of the predicted time until a layer for which its fetch waits: layers are up to 1.44x faster than predicted."""
LEAST_MOVED_BYTES = 5_000_000
"""By a layer, for a fetch beside it to wait: less pushes no code out, and predictions are for many images. Of few rows,
with its weights in a table, a layer takes a fifth of its own."""
KEPT = 0.4
"""Share of the L2 cache that code waits in: it may lie there twice, and what passes through takes the rest."""


@dataclass(frozen=True)
class Gpu:
    """What a plan depends on."""

    multiprocessors: int
    l2_bytes: int


@dataclass(frozen=True)
class LayerRun:
    """A layer of a network, for some number of images."""

    microseconds: float
    """Predicted, with its code in the L2 cache."""
    fetch_microseconds: float
    """Until all of its code is there; 0 of a layer whose code is better left alone."""
    code_bytes: int
    moved_bytes: int
    """Of its input and its output."""


def layer_run(launches: Sequence[tuple[Launch, int]], image_bytes: int, images: int, gpu: Gpu) -> LayerRun:
    """Of a layer's launches, each with the bytes of its code, and the bytes of an image in its input and output."""
    issued = longest = 0.0
    for launch, code_bytes in launches:
        x, y, z = launch.grid_at(min(images, launch.images_limit))
        issued += x * y * -(-prod(launch.block) // WARP) * code_bytes / INSTRUCTION_BYTES
        longest = max(longest, code_bytes / z / INSTRUCTION_BYTES)
    code_bytes = sum(count for _, count in launches)
    return LayerRun(
        LAUNCH_MICROSECONDS + max(issued / ISSUED / gpu.multiprocessors, longest / FOLLOWED),
        LAUNCH_MICROSECONDS + code_bytes / FETCHED_BYTES if code_bytes >= LEAST_BYTES else 0.0,
        code_bytes,
        image_bytes * images,
    )


@dataclass(frozen=True)
class Fetches:
    """What is fetched beside a layer, from its beginning on."""

    layers: tuple[int, ...] = ()
    """By their numbers: one after another."""
    wait_nanoseconds: int = 0
    """Before the first of them."""


def planned_fetches(layers: Sequence[LayerRun], l2_bytes: int) -> tuple[Fetches, ...]:
    """For each layer, in the order in which they run, those of the later ones whose code is fetched beside it.

    Beside the last layer from which on there is time for all of it, or a later one where the code from there on is more
    than the cache keeps; beside the one before its own at the latest. It waits first: it would disturb that layer while
    its own code comes, and what that one moves would push it out. Nothing is fetched of a network that the cache holds
    from one run to the next.
    """
    room = KEPT * l2_bytes
    starts: list[list[int]] = [[] for _ in layers]
    waits = [inf for _ in layers]
    if sum(each.code_bytes + each.moved_bytes for each in layers) <= room:
        return tuple(Fetches() for _ in layers)
    for number, layer in enumerate(layers):
        if not number or not layer.fetch_microseconds:
            continue
        start = number - 1
        time, waiting = layers[start].microseconds, layer.code_bytes + layers[start].code_bytes
        while start and time < layer.fetch_microseconds and waiting + layers[start - 1].code_bytes <= room:
            start -= 1
            time += layers[start].microseconds
            waiting += layers[start].code_bytes
        starts[start].append(number)
        share = SLEPT if layers[start].moved_bytes >= LEAST_MOVED_BYTES else 0.0
        waits[start] = min(waits[start], max(0.0, share * time - layer.fetch_microseconds))
    return tuple(
        Fetches(tuple(numbers), int(1000 * wait)) if numbers else Fetches()
        for numbers, wait in zip(starts, waits, strict=True)
    )
