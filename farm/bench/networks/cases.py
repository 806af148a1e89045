"""Cases of a network benchmark: models and the bundles that belong to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from codegen.frontend.onnx.export.network import read_network
from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.ir.checkpoint import Checkpoint
from farm.bundle.reader import Bundle
from farm.cuda.measure.workload import CaseKey
from farm.errors import BlobLostError, UsageError
from farm.store.contract import Store

Source = Path | str
"""A local file, or the digest of its bytes in the store."""


@dataclass(frozen=True)
class NetworkModel:
    """A model to measure: its name and its checkpoint."""

    name: str
    path: Path
    checkpoint: Checkpoint
    shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    """Shapes of inputs that the file leaves open."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Values of inputs that are constants."""

    @property
    def data_type(self) -> str:
        """Data type of most layers."""
        kinds = [layer.spec.data_type for layer in self.checkpoint.layers]
        return max(dict.fromkeys(kinds), key=kinds.count)

    @property
    def sparsity(self) -> float:
        """Share of zero weights in all layers."""
        weights = [layer.weights for layer in self.checkpoint.layers]
        return round(1 - sum(each.nonzeros for each in weights) / sum(each.kernel.size for each in weights), 4)

    def key(self, batch: int) -> CaseKey:
        return CaseKey(self.name, batch, self.sparsity, self.data_type)


@dataclass(frozen=True)
class NetworkCase:
    """One network at one batch size."""

    key: CaseKey
    model: Source
    bundle: Source
    shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    compile_seconds: float | None = None
    """Time to compile the bundle; None for a given bundle."""
    checkpoint: Checkpoint | None = field(default=None, compare=False, repr=False)
    """The model's checkpoint, which is not sent to other machines."""


def bundles_for(models: Sequence[NetworkModel], batches: Sequence[int], paths: Sequence[Path]) -> dict[CaseKey, Path]:
    """Bundle of each case, by model and by the batch it was compiled for; models without bundles are absent.

    Raises UsageError for a bundle of none of the models, for duplicate bundles, and for a model with bundles for
    some batches only.
    """
    found: dict[CaseKey, Path] = {}
    for path in paths:
        bundle = Bundle(path)
        model = _model_of(bundle, models)
        for key in map(model.key, bundle.manifest.batches):
            if key in found:
                both = f"{found[key]} and {path} are both of {model.name} at batch {key.batch}"
                raise UsageError(f"{both}: give one of them")
            found[key] = path
    for model in models:
        had = [key.batch for key in found if key in (model.key(batch) for batch in (key.batch,))]
        lacking = [batch for batch in batches if model.key(batch) not in found]
        if had and lacking:
            raise UsageError(
                f"of {model.name} there are bundles for batch {', '.join(map(str, sorted(had)))} and none for "
                f"{', '.join(map(str, lacking))}: say --batch {','.join(map(str, sorted(had)))}, or compile it with "
                f"--batch {lacking[0]}"
            )
    return {key: path for key, path in found.items() if key.batch in batches}


def _model_of(bundle: Bundle, models: Sequence[NetworkModel]) -> NetworkModel:
    reasons = []
    for model in models:
        reason = difference(bundle, model.checkpoint)
        if not reason:
            return model
        reasons.append(f"{model.name}: {reason}")
    raise UsageError(f"{bundle.path} is of none of the models ({'; '.join(reasons)}): fetch the bundle of one of them")


def difference(bundle: Bundle, checkpoint: Checkpoint) -> str:
    """Why a bundle does not belong to a model; empty if all its layers have the model's weights."""
    layers = {layer.name: layer for layer in checkpoint.layers}
    for name, bundled in bundle.layers.items():
        layer = layers.get(name)
        if layer is None:
            return f"it has no layer {name}"
        if layer.weights.digest != bundled.weights_digest:
            return f"its layer {layer.name} has other weights"
    return ""


def check_arch(bundle: Bundle, arch: str) -> None:
    """Raises UsageError if a layer has no code for an architecture."""
    for layer in bundle.layers.values():
        if not layer.cubins_for(arch):
            raise UsageError(
                f"{bundle.path} has {', '.join(bundle.archs)} and the GPU is of {arch}, which runs none of it: "
                f"compile the model with --arch {arch}"
            )


def input_shapes(tensors: Sequence[Tensor], batch: int) -> list[tuple[int, ...]]:
    """Input shapes of a call on a batch; the first size of every input is the number of images. Raises UsageError."""
    shapes = []
    for tensor in tensors:
        first, *others = tensor.shape or (None,)
        if isinstance(first, int) and first != batch:
            raise UsageError(f"the model's input {tensor.name} is for {first} images only: say --batch {first}")
        sizes = [size for size in others if isinstance(size, int)]
        if len(sizes) < len(others):
            rest = ["1" if not isinstance(size, int) else str(size) for size in others]
            shown = ",".join([str(first) if isinstance(first, int) else "N", *rest])
            raise UsageError(
                f"the model leaves the shape of {tensor.name} open: say --input-shape {tensor.name}:{shown}"
            )
        shapes.append((batch, *sizes))
    return shapes


def inputs_of(checkpoint: Checkpoint) -> tuple[Tensor, ...]:
    """Inputs of the whole model. Raises UsageError for a checkpoint without a network."""
    if checkpoint.residual_graph is None:
        raise UsageError(f"{checkpoint.path} is no network: name an ONNX file")
    return read_network(checkpoint.residual_graph.with_layers(checkpoint.layers)).inputs


def sent_cases(cases: Sequence[NetworkCase], store: Store) -> list[NetworkCase]:
    """Cases for another machine: models and bundles are stored. Raises StoreError and UsageError."""
    return [
        replace(case, model=_put(case.model, store), bundle=_put(case.bundle, store), checkpoint=None) for case in cases
    ]


def received(source: Source, name: str, folder: Path, store: Store) -> Path:
    """File of a source, written below a folder if it comes from the store. Raises BlobLostError."""
    if isinstance(source, Path):
        return source
    path = folder / name
    if not path.exists():
        data = store.get(source)
        if data is None:
            raise BlobLostError(
                f"the store {store.describe()} lacks {name}: the machine that asks and the machines of the cluster "
                "must use the same store"
            )
        path.write_bytes(data)
    return path


def _put(source: Source, store: Store) -> Source:
    if isinstance(source, str):
        return source
    if source.is_dir():
        raise UsageError(f"{source} is a folder, and the GPU is of another machine: fetch the bundle as one file.farm")
    return store.put(source.read_bytes())
