"""The question that a ranking of tilings answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Accumulator
from codegen.target.device_model import REFERENCE, DeviceModel


@dataclass(frozen=True)
class RankingQuestion:
    """Question for a layer's fastest tilings: its shape and bands of batch and density, but no weights."""

    spec: LayerSpec
    """Canonical."""
    batch: int
    """Band of images, or of rows of a Linear; see `codegen.selection.choose.bands_of`."""
    density: float
    """Band of non-zeros / weights."""
    accumulate: Accumulator
    clusters: bool
    """Whether the architecture has clusters."""
    tables: bool
    """Whether the weights may be a table."""
    device: DeviceModel = REFERENCE
    """The GPU that the kernels run on."""

    @property
    def without_options(self) -> RankingQuestion:
        """The question for neither clusters nor tables."""
        return replace(self, clusters=False, tables=False)
