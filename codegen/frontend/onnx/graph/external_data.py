"""External data: weights that an ONNX model keeps in other files, which must be inside the model's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from codegen.errors import CheckpointError


@dataclass(frozen=True)
class ExternalData:
    """A checked range of bytes in an external data file."""

    path: Path
    offset: int
    byte_count: int

    def read(self) -> bytes:
        """The bytes of the tensor. Raises CheckpointError if the file can no longer be read."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                return file.read(self.byte_count)
        except OSError as error:
            raise CheckpointError(
                f"external data '{self.path.name}' cannot be read ({error.strerror}): check its permissions"
            ) from error


def find_external_data(folder: Path, entries: Mapping[str, str], byte_count: int | None) -> ExternalData:
    """The file range of a tensor, from its `external_data` entries location, offset and length.

    `byte_count` replaces a missing length; without both the range reaches to the end of the file.
    Raises CheckpointError if the file is missing, too short, or outside `folder` after following links.
    """
    location = entries.get("location", "")
    where = f"external data '{location}'"
    outside = CheckpointError(
        f"{where} lies outside the model's folder, which a model may not read: "
        "copy the file itself beside the model and name it relative to the model"
    )
    if Path(location).is_absolute() or ".." in Path(location).parts:
        raise outside
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries["length"]) if "length" in entries else byte_count
        target = (folder / location).resolve(strict=True)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{where} is missing: put the file beside the model, where the export wrote it"
        ) from error
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # circular links; not a number or path
        raise CheckpointError(f"{where} cannot be used ({error}): export the model again") from error
    if not target.is_relative_to(folder.resolve()):
        raise outside
    if not target.is_file():
        raise CheckpointError(f"{where} is not a file: export the model again")
    size = target.stat().st_size
    if length is None:
        length = size - offset
    if offset < 0 or length < 0 or offset + length > size:
        raise CheckpointError(
            f"{where} has {size} bytes, but the model reads {length} from byte {offset}: "
            "the file was cut short or belongs to another model; copy or export both again"
        )
    return ExternalData(target, offset, length)
