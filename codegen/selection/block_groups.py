"""Tilings of convolutions on small maps whose blocks have several K groups, near one whose blocks have one.

The K groups of a block share its input, which otherwise comes from L2 once for each of them: on an H200 most of what a
1x1 layer of ResNet-50 moves. Only the tuner tries them: the cost model predicts them too slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.kernels.lowering import Lowered

GROUPS = ((2, 32), (4, 16), (2, 64), (4, 32))
"""K groups of a block, and output channels of each."""
MOST_POSITIONS = 256
"""Most positions of a map, those that share a word counted as one: of larger maps such blocks were slower."""
MOST_FILTER_POSITIONS = 64
"""Most positions of a map for filters larger than 1x1: at 14x14 such blocks were 2 to 15 % slower."""


def with_several_groups(layer: Lowered[LayerSpec], tiling: Tiling) -> Iterator[Tiling]:
    """Tilings near one, with several K groups in a block, whether they fit or not.

    None for other kernels and larger maps, and none that leaves a block K groups without outputs.
    """
    geometry = layer.geometry
    if tiling.kernel != "conv2d" or tiling.groups > 1:
        return
    most = MOST_POSITIONS if geometry.taps == 1 else MOST_FILTER_POSITIONS
    if geometry.positions_height * geometry.positions_width > most:
        return
    outputs = tiling.group_outputs
    groups = dict.fromkeys((*GROUPS, (2, outputs), (4, max(1, outputs // 2))))
    chunks = ((tiling.chunk_channels, tiling.stages), (2 * tiling.chunk_channels, 2))
    clusters = dict.fromkeys((tiling.cluster, max(1, tiling.cluster // 2)))
    # A block of one image would pair distant columns.
    least = 2 if layer.spec.data_type == "float16" and geometry.neighbours == 1 else 1
    images = dict.fromkeys((max(least, tiling.images // 2), tiling.images))
    for (channels, stages), cluster, count, order, (number, size) in product(
        chunks, clusters, images, ("group", "place"), groups
    ):
        if -(-geometry.output_channels // size) % number:
            continue
        yield replace(
            tiling,
            groups=number,
            group_outputs=size,
            chunk_channels=channels,
            stages=stages,
            images=count,
            cluster=cluster,
            order=order,
        )
