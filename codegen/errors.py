"""Errors of code generation; each message has a fact, the reason and the way out."""

from __future__ import annotations

import re


class CodegenError(Exception):
    """Base class of all errors of code generation."""


class CheckpointError(CodegenError):
    """A model file that cannot be compiled. The message names the file."""


class ContainedFileError(CodegenError):
    """A path that is not a regular file inside its folder. The message is the reason alone."""


class ArchError(CodegenError):
    """An architecture that the toolchain or the templates do not support."""


class TilingError(CodegenError):
    """A tiling that does not fit its layer, or a layer that no tiling fits."""


class TemplateError(CodegenError):
    """PTX of the compiler without the form that the rewriter needs."""


class PtxError(CodegenError):
    """PTX that this program does not understand. The message names the line."""


class EmulationError(CodegenError):
    """Emulated code that does something unsupported or invalid."""


class MachineCodeError(CodegenError):
    """Machine code that this program does not understand, or that a check rejects."""


class UnsupportedCodeError(EmulationError, MachineCodeError):
    """An instruction, or a form of one, that the hazard checker or the emulator of machine code does not know."""


class ToolchainError(CodegenError):
    """A tool that is missing or cannot be used on this machine."""


class ToolCancelled(CodegenError):
    """A tool that was killed because its run was cancelled."""


class ToolError(CodegenError):
    """A tool that ran and failed: `command` can be pasted into a shell, `stderr` is the tool's output."""

    def __init__(self, message: str, *, command: str, stderr: str = "") -> None:
        super().__init__(message)
        self.command = command
        self.stderr = stderr


class ToolTimeout(ToolError):
    """A tool that exceeded its time limit."""


class ToolOutOfMemory(ToolError):
    """A tool that exceeded its memory limit."""


class ToolCrashed(ToolError):
    """A tool that was ended by a signal."""


class DeviceError(CodegenError):
    """A missing GPU, a missing PyCUDA, or a failed launch."""


class LaunchError(DeviceError):
    """A launch with more images than any GPU takes at once."""


def without_places(reason: str) -> str:
    """A reason about machine code without the numbers of its words, so that equal reasons are counted together."""
    return re.sub(r"\bword \d+\b", "a word", reason)
