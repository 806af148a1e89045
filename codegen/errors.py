"""The errors of code generation. Each message has the fact, the reason and the way out."""

from __future__ import annotations


class CodegenError(Exception):
    """Anything that code generation reports."""


class CheckpointError(CodegenError):
    """The model file cannot be compiled: the input's fault. The message names the file."""


class ArchError(CodegenError):
    """An architecture that the toolchain does not know."""


class TilingError(CodegenError):
    """No tiling fits the layer, or a given one does not."""


class TemplateError(CodegenError):
    """The compiler's PTX does not have the form the rewriter needs."""


class PtxError(CodegenError):
    """A text that is not the PTX this program knows. The message names the line."""


class EmulationError(CodegenError):
    """The PTX did something the emulator does not know, or something no program may do."""


class MachineCodeError(CodegenError):
    """A cubin or a stream of machine code that this program does not understand, or that a check refuses."""


class ToolchainError(CodegenError):
    """A tool is missing or cannot be used here."""


class ToolStopped(CodegenError):
    """A tool was ended because nobody wants its output any more."""


class ToolError(CodegenError):
    """A tool ran and failed; `command` can be pasted into a shell, `stderr` is what it said."""

    def __init__(self, message: str, *, command: str, stderr: str = "") -> None:
        super().__init__(message)
        self.command = command
        self.stderr = stderr


class ToolTimeout(ToolError):
    """The tool ran into its time limit."""


class ToolOutOfMemory(ToolError):
    """The tool ran into its memory limit."""


class ToolCrashed(ToolError):
    """The tool was ended by a signal."""


class DeviceError(CodegenError):
    """There is no GPU to run on, or PyCUDA is not installed, or the launch failed."""


class LaunchError(DeviceError):
    """More images than one launch takes, on any GPU."""
