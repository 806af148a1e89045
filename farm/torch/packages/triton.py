"""A .pt2 package in a model repository of Triton Inference Server."""

from __future__ import annotations

from pathlib import Path

from farm.bundle.reader import Bundle
from farm.errors import UsageError, printable
from farm.torch.packages.aot_inductor import Package, write_package

TYPES = {
    "bool": "TYPE_BOOL",
    "bfloat16": "TYPE_BF16",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "uint8": "TYPE_UINT8",
}
"""Triton's names of data types."""


def write_triton_model(bundle: Bundle, folder: Path, device: str = "cuda") -> Package:
    """Write a bundle's network as a model of a repository: `config.pbtxt` and `1/model.pt2` in a folder of its own.

    `device` and the errors are those of `write_package`.
    """
    package = write_package(bundle, folder / "1" / "model.pt2", device)
    fresh = folder / ".config.pbtxt"
    try:
        fresh.write_text(config_of(package, bundle.manifest.batches[-1]))
        fresh.replace(folder / "config.pbtxt")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}): name another folder") from None
    return package


def config_of(package: Package, most_images: int) -> str:
    """The model configuration. Raises UsageError for a data type that Triton does not have.

    Requests have up to `most_images`; their first dimension is no batch for Triton if the package takes only one batch
    size or a tensor has none.
    """
    ports = (*package.inputs, *package.outputs)
    if unknown := next((each for each in ports if each.dtype not in TYPES), None):
        raise UsageError(f"Triton has no type for {printable(unknown.name)} ({unknown.dtype}): change the model")
    batched = all(each.shape and each.shape[0] is None for each in ports)
    # Without dynamic batching: of joined requests, Triton's backend answers each with the outputs of all.
    lines = ['backend: "pytorch"', 'platform: "torch_aoti"', f"max_batch_size: {most_images if batched else 0}"]
    for what, tensors in (("input", package.inputs), ("output", package.outputs)):
        for number, each in enumerate(tensors):
            dims = ", ".join(str(size or -1) for size in each.shape[batched:])
            lines.append(f'{what} {{ name: "{what.upper()}__{number}" data_type: {TYPES[each.dtype]} dims: [{dims}] }}')
    lines.append("instance_group { kind: KIND_GPU }")
    return "\n".join([*lines, ""])
