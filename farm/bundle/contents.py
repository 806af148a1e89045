"""The contents of a bundle in numbers: its compiled layers, and what is left to the program that runs the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from codegen.ir.layer_spec import LIKELY_ROWS
from farm.bundle.reader import Bundle, BundledLayer


@dataclass(frozen=True)
class LayerContents:
    """A compiled layer."""

    layer: BundledLayer
    bytes_by_arch: Mapping[str, int]
    """Size of the cubins by architecture, and of PTX by virtual architecture."""
    multiply_adds: int
    """Multiply-adds for each image if no weight were zero."""
    share: float | None
    """Fraction of the network's multiply-adds; None if those are unknown."""

    @property
    def nonzeros(self) -> int:
        return self.layer.nonzeros

    @property
    def sparsity(self) -> float:
        return 1 - self.nonzeros / self.layer.spec.weights_count


@dataclass(frozen=True)
class SkippedContents:
    """A layer with weights that is not compiled."""

    name: str
    operator: str
    reason: str
    multiply_adds: int | None
    share: float | None


@dataclass(frozen=True)
class Contents:
    """The contents of a whole bundle."""

    layers: tuple[LayerContents, ...]
    skipped: tuple[SkippedContents, ...]
    glue: Mapping[str, int]
    """Number of nodes of each ONNX operator beside the compiled layers, skipped layers among them."""
    constants_bytes: int
    """Size of the constants that those nodes read."""
    left_share: float | None
    """Fraction of the multiply-adds that is not compiled; None if it is unknown."""


def contents_of(bundle: Bundle) -> Contents:
    """Counts a bundle's contents. Raises UsageError if its network is missing or damaged."""
    skipped = [each.multiply_adds for each in bundle.manifest.skipped]
    compiled = {name: multiply_adds_of(layer) for name, layer in bundle.layers.items()}
    known = not bundle.missing and None not in skipped
    whole = sum(compiled.values()) + sum(each or 0 for each in skipped)

    def share(multiply_adds: int | None) -> float | None:
        return None if multiply_adds is None or not known or not whole else multiply_adds / whole

    layers = tuple(
        LayerContents(layer, _bytes_by_arch(layer), compiled[name], share(compiled[name]))
        for name, layer in bundle.layers.items()
    )
    glue: Counter[str] = Counter()
    constants = 0
    if bundle.has_network:
        network = bundle.network
        glue.update(node.operator for node in network.nodes if not node.layer)
        constants = sum(each.nbytes for each in network.constants.values())
    return Contents(
        layers,
        tuple(
            SkippedContents(each.name, each.operator, each.reason, each.multiply_adds, share(each.multiply_adds))
            for each in bundle.manifest.skipped
        ),
        dict(sorted(glue.items())),
        constants,
        share(sum(each or 0 for each in skipped)),
    )


def multiply_adds_of(layer: BundledLayer) -> int:
    """Multiply-adds for each image if no weight were zero; a sequence of unknown length counts as a likely one."""
    return layer.spec.multiply_adds * (layer.rows_per_image or LIKELY_ROWS)


def _bytes_by_arch(layer: BundledLayer) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for each in (*layer.cubins, *layer.ptx):
        counts[each.arch] += each.bytes
    return dict(counts)
