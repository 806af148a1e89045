"""Machine code of large layers: bytes for each non-zero weight, predicted for the layer and as ptxas makes it."""

from __future__ import annotations

import numpy as np

from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear
from codegen.ir.tiling import Part
from codegen.model_zoo import random_weights
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import make_template
from codegen.selection.choose import choose_parts, choose_tiling
from codegen.selection.code_size import stream_instructions
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import ToolLimits, find_toolchain

SPARSITY = 0.9
LAYERS: dict[str, LayerSpec] = {
    "VGG-16 fc6": Linear(25088, 4096),
    "VGG-16 fc7": Linear(4096, 4096),
    "VGG-16 fc8": Linear(4096, 1000),
    "ViT-B/16 patches": Conv2d(3, 224, 224, 768, 16, 16, (16, 16)),
    "Mixer-S/32 patches": Conv2d(3, 224, 224, 512, 32, 32, (32, 32)),
    "BERT 768 to 3072": Linear(768, 3072),
    "BERT 3072 to 768": Linear(3072, 768),
    "ResNet 512 to 512, 3x3": Conv2d(512, 7, 7, 512, 3, 3, padding=(1, 1, 1, 1)),
    "LeNet-5 fc1": Linear(800, 500),
}


def code_size() -> None:
    """Large layers at sparsity 0.9: at most 24 bytes a non-zero weight."""
    toolchain = find_toolchain()
    print(
        f"  {'layer':<24}{'batch':>6}{'non-zeros':>12}{'code':>10}{'parts':>7}{'predicted':>11}{'ptxas':>7}  bytes/nz"
    )
    for name, spec in LAYERS.items():
        weights = random_weights(spec, SPARSITY)
        counts = weights.nonzeros_per_output
        for batch in (1, 64):
            tiling = choose_tiling(spec, batch, counts, code_limit_bytes=10**9, tables=False)
            streams = 16 * stream_instructions(spec, tiling, counts)
            template = make_template(spec, tiling, "compute_80", toolchain, ToolLimits(600))
            first = rewrite(template, weights, Part(0, 1))
            made = assemble(first.ptx, "sm_90", toolchain, limits=ToolLimits(600))
            print(
                f"  {name:<24}{batch:>6}{counts.sum():>12,}{streams.sum() / 1e6:>7.1f} MB"
                f"{len(choose_parts(spec, tiling, counts)):>7}{streams.sum() / counts.sum():>11.1f}"
                f"{len(made.data) / np.sum(counts[: tiling.group_outputs]):>7.1f}",
                flush=True,
            )
