"""The text of a plan, `network.plan`: one fact a line, words separated by single spaces, read as hostile input.

C reads it too (`farm/runtime/c/plan.c`, with the same rules). In this order:

    farm-plan 4
    file BYTES SHA256 PATH
    layer INPUT_BYTES OUTPUT_BYTES HAS_RESIDUAL GATE_BYTES NAME
    kernel LAYER ARCH FILE MOST_ROWS ENTRY GRID BLOCK SHARED_BYTES WAITS OUTPUT_STEP INPUT_STEP LETTERS
    refused REASON                                     instead of all but the last of the following lines
    images IMAGES                                      0 for any number
    constants BYTES
    input IMAGE_BYTES DTYPE ROWS RANK SIZES NAME       and `output`, for each port
    buffer IMAGE_BYTES
    run LAYER ROWS COUNT PLACES TENSOR
    launch KERNEL ROWS GRID THREADS OUTPUT COUNT ARGUMENTS TENSOR
    sha256 DIGEST                                      of everything before it

Layers, files and buffers are numbered from 0 in the order of their lines. Paths of files are distinct, and kernels have
files of their own, in their order, so that no file is read twice. A name is quoted (`quote_name`), so that it
holds no space and no line break. Places are i, o and b with the number of an input, output or buffer, and c with an
offset in the constants. Other arguments are n (the number of rows), d with an int32, and f with a float's bits in
hexadecimal.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from urllib.parse import quote, unquote_to_bytes

from codegen.ir.launch import MOST_BLOCKS, MOST_IMAGES, GridSize
from codegen.ir.layer_spec import is_gated
from farm.bundle.reader import CONSTANTS, GLUE, PLAN, PLAN_FORMAT, Bundle, BundledLayer, Cubin
from farm.errors import BundleError, UsageError
from farm.runtime.plan import ELEMENT_BYTES, Argument, Grid, KernelStep, Kind, LayerStep, Place, Plan, Port, Rows, Step

# Limits, which plan.h has too.
MOST_BYTES = 2**24
"""Largest plan."""
MOST_LINES = 65_536
"""Most lines of one kind."""
MOST_STEPS = 16_384
MOST_ARGUMENTS = 32
MOST_RANK = 16
MOST_TENSOR_BYTES = 2**33
"""Largest tensor of one image."""
MOST_FILE_BYTES = 2**32
MOST_SHARED_BYTES = 2**20
MOST_THREADS = 1024
MOST_INT = 2**31 - 1
_LETTERS: dict[str, Kind] = {"i": "input", "o": "output", "b": "buffer", "c": "constant"}
_ORDER = ("file", "layer", "kernel", "refused", "images", "constants", "input", "output", "buffer", "run", "launch")
_MIXED = {"launch": "run"}
"""Lines that may stand among those of another kind."""
_SINGLE = ("refused", "images", "constants")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_PATH = re.compile(r"(?=.{1,511}$)[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_NAME = re.compile(r"%|(?:[!-$&-~]|%[0-9a-f]{2})+")
_PUNCTUATION = "!\"#$&'()*+,/:;<=>?@[\\]^`{|}"
"""Characters that a name may hold unquoted, beside letters, digits and `_.-~`."""


@dataclass(frozen=True)
class PlannedLayer:
    """A compiled layer as the plan describes it."""

    name: str
    input_bytes: int
    """Size for one image, or for one row of a linear layer; the other sizes too."""
    output_bytes: int
    """Also of the residual."""
    has_residual: bool
    gate_bytes: int

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        """Sizes of the tensors in the order of a step's places."""
        residual = (self.output_bytes,) if self.has_residual else ()
        return (self.input_bytes, self.output_bytes, *residual, *((self.gate_bytes,) if self.gate_bytes else ()))

    @staticmethod
    def of(layer: BundledLayer) -> PlannedLayer:
        spec, size = layer.spec, ELEMENT_BYTES[layer.spec.data_type]
        gates = spec.channels * size if is_gated(spec) else 0
        x, output = prod(spec.input_shape) * size, prod(spec.output_shape) * size
        return PlannedLayer(layer.name, x, output, layer.has_residual, gates)

    def line(self) -> str:
        """The layer's line in a plan. Raises BundleError."""
        residual = int(self.has_residual)
        return f"layer {self.input_bytes} {self.output_bytes} {residual} {self.gate_bytes} {quote_name(self.name)}"


@dataclass(frozen=True)
class PlanText:
    """Contents of a plan's text without the layers' kernels, which Python reads from the manifest."""

    layers: tuple[PlannedLayer, ...]
    refused: str | None
    """Why the network does not run."""
    plan: Plan
    """Empty if the network was refused."""


def plan_of(bundle: Bundle) -> Plan:
    """The plan of a bundle's network. Raises UsageError if the network is not run, BundleError for a damaged plan."""
    text = bundle.plan
    try:
        read = read_plan(text)
    except BundleError as error:
        raise BundleError(f"{bundle.path}: {error}") from None
    if read.refused is not None:
        raise UsageError(f"{bundle.path}: {read.refused}")
    layers = bundle.layers.values()
    launches = [(each.launch, layer) for layer in read.layers for each in _code(bundle.layers.get(layer.name))]
    if read.layers != tuple(map(PlannedLayer.of, layers)) or any(
        len(launch.tensors) != len(layer.tensor_bytes) for launch, layer in launches
    ):
        raise BundleError(f"{bundle.path}: its {PLAN} has other layers than its manifest: fetch the bundle again")
    return read.plan


def _code(layer: BundledLayer | None) -> Sequence[Cubin]:
    return () if layer is None else (*layer.cubins, *layer.ptx)


def quote_name(name: str) -> str:
    """A name as one word of printable ASCII: %xx for every other byte of its UTF-8, % alone for an empty name.

    Raises BundleError for a name with a zero, which C cannot hold.
    """
    if "\0" in name:
        raise BundleError(f"the name {name!r} has a zero: rename the tensor or layer")
    encoded = quote(name, safe=_PUNCTUATION)
    return re.sub("%..", lambda match: match[0].lower(), encoded) or "%"


def with_end(lines: Sequence[str]) -> bytes:
    """A plan's text of its lines, with the first and the last one added."""
    text = "".join(f"{line}\n" for line in (PLAN_FORMAT, *lines)).encode()
    return text + f"sha256 {hashlib.sha256(text).hexdigest()}\n".encode()


def plan_lines(plan: Plan, layers: Sequence[str]) -> list[str]:
    """The lines of a network. Layers are numbered by their positions in `layers`. Raises BundleError."""
    positions = {name: i for i, name in enumerate(layers)}
    lines = [f"images {plan.images or 0}", f"constants {plan.constants_bytes}"]
    for word, ports in (("input", plan.inputs), ("output", plan.outputs)):
        for port in ports:
            sizes = " ".join(map(str, (port.rows, len(port.shape), *port.shape)))
            lines.append(f"{word} {port.image_bytes} {port.dtype} {sizes} {quote_name(port.name)}")
    lines += [f"buffer {count}" for count in plan.buffers]
    for step in plan.steps:
        tensor = quote_name(step.tensor)
        if isinstance(step, LayerStep):
            head = f"run {positions[step.layer]} {step.rows} {len(step.places)}"
            lines.append(f"{head} {' '.join(map(str, step.places))} {tensor}")
        else:
            arguments = " ".join(map(_written, step.arguments))
            head = f"launch {step.kernel} {step.rows} {grid_text(step.grid)} {step.threads} {step.output}"
            lines.append(f"{head} {len(step.arguments)} {arguments} {tensor}")
    return lines


def grid_text(grid: Grid) -> str:
    """A grid as six numbers: `fixed` and `images` (0 for none) of x, y and z."""
    return " ".join(f"{size.fixed} {size.images or 0}" for size in grid)


def _written(argument: Argument) -> str:
    """An argument's text."""
    match argument:
        case Place():
            return str(argument)
        case Rows():
            return "n"
        case int():
            return f"d{argument}"
        case float():
            return f"f{struct.pack('>f', argument).hex()}"


def read_plan(text: bytes) -> PlanText:
    """Reads a plan's text. Raises BundleError for anything but a plan of this version."""
    if not text.startswith(f"{PLAN_FORMAT}\n".encode()):
        raise BundleError(f"its {PLAN} has another version: fetch the bundle again with this version of farm")
    begin = text.rfind(b"\nsha256 ") + 1
    if not begin or len(text) > MOST_BYTES:
        raise BundleError(f"{PLAN} is damaged: its end is missing. Fetch the bundle again")
    if text[begin:] != f"sha256 {hashlib.sha256(text[:begin]).hexdigest()}\n".encode():
        raise BundleError(f"{PLAN} is damaged: its digest differs from the one in it. Fetch the bundle again")
    reader = _Reader()
    for number, line in enumerate(text[:begin].decode("latin-1").split("\n")[1:-1], 2):
        try:
            reader.read(_Line(line))
        except ValueError as error:
            raise _damaged(number, error) from None
    if reader.refused is None and "constants" not in reader.counts:
        raise _damaged(number, "no number of constants after it")
    if len(reader.files) < reader.counts.get("file", 0):
        raise BundleError(f"{PLAN} is damaged: two of its files have the same path. Fetch the bundle again")
    return reader.text()


def _damaged(number: int, why: object) -> BundleError:
    return BundleError(f"{PLAN} is damaged in line {number} ({why}): fetch the bundle again")


class _Line:
    """The words of a line, read from left to right. All methods raise ValueError, with the reason."""

    def __init__(self, text: str) -> None:
        if not re.fullmatch("[ -~]*", text):
            raise ValueError("a byte that is not printable ASCII")
        self._words = text.split(" ")
        self._place = 0

    def word(self) -> str:
        if self._place == len(self._words):
            raise ValueError("a word is missing")
        self._place += 1
        if not self._words[self._place - 1]:
            raise ValueError("two spaces")
        return self._words[self._place - 1]

    def number(self, least: int, most: int) -> int:
        return _number(self.word(), least, most)

    def name(self) -> str:
        word = self.word()
        if not _NAME.fullmatch(word):
            raise ValueError("an invalid name")
        name = unquote_to_bytes("" if word == "%" else word)
        if b"\0" in name:
            raise ValueError("a zero in a name")
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise ValueError("a name that is not UTF-8") from None

    def matching(self, pattern: str, what: str) -> str:
        word = self.word()
        if not re.fullmatch(pattern, word):
            raise ValueError(what)
        return word

    def kernel(self) -> str:
        return self.matching("[A-Za-z0-9_]+", "an invalid name of a kernel")

    def grid(self) -> Grid:
        x, y, z = (GridSize(self.number(1, most), self.number(0, MOST_IMAGES) or None) for most in MOST_BLOCKS)
        return x, y, z

    def end(self) -> None:
        if self._place < len(self._words):
            raise ValueError("too many words")


def _number(digits: str, least: int, most: int) -> int:
    sign, rest = (-1, digits[1:]) if least < 0 and digits.startswith("-") else (1, digits)
    if not _NUMBER.fullmatch(rest) or (sign < 0 and rest == "0"):
        raise ValueError("an invalid number")
    value = sign * int(rest)
    if not least <= value <= most:
        raise ValueError("a number out of range")
    return value


@dataclass
class _Reader:
    """The facts of a plan that have been read so far."""

    counts: dict[str, int] = field(default_factory=dict)
    """Number of lines of each kind, in their order."""
    files: dict[str, int] = field(default_factory=dict)
    """Size of each file."""
    layers: list[PlannedLayer] = field(default_factory=list)
    last_kernel: int = 0
    """Layer of the last kernel."""
    next_file: int = 0
    """First file that no kernel has yet."""
    refused: str | None = None
    images: int = 0
    constants: int = 0
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def text(self) -> PlanText:
        ports = tuple(self.inputs), tuple(self.outputs)
        plan = Plan(self.images or None, *ports, self.constants, tuple(self.buffers), tuple(self.steps))
        return PlanText(tuple(self.layers), self.refused, plan)

    def read(self, line: _Line) -> None:
        word = line.word()
        readers: dict[str, Callable[[_Line], None]] = {
            "file": self._file,
            "layer": self._layer,
            "kernel": self._kernel,
            "refused": self._refused,
            "images": self._images,
            "constants": self._constants,
            "input": lambda line: self.inputs.append(_port(line)),
            "output": lambda line: self.outputs.append(_port(line)),
            "buffer": lambda line: self.buffers.append(line.number(1, MOST_TENSOR_BYTES)),
            "run": lambda line: self.steps.append(self._run(line)),
            "launch": lambda line: self.steps.append(self._launch(line)),
        }
        if word not in readers:
            raise ValueError("an unknown word")
        self._check_order(word)
        readers[word](line)
        line.end()

    def _check_order(self, word: str) -> None:
        kind = _MIXED.get(word, word)
        last = max((_ORDER.index(each) for each in self.counts), default=0)
        if _ORDER.index(kind) < last or self.refused is not None or (kind in _SINGLE and kind in self.counts):
            raise ValueError("a line in the wrong place")
        if _ORDER.index(kind) > _ORDER.index("constants") and "constants" not in self.counts:
            raise ValueError("no number of constants before it")
        if kind == "constants" and "images" not in self.counts:
            raise ValueError("no number of images before it")
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] > (MOST_STEPS if kind == "run" else MOST_LINES):
            raise ValueError("too many lines of its kind")

    def _file(self, line: _Line) -> None:
        size = line.number(1, MOST_FILE_BYTES)
        line.matching("[0-9a-f]{64}", "an invalid hexadecimal number")
        path = line.word()
        if not _PATH.fullmatch(path):
            raise ValueError("a path that leaves the bundle")
        self.files[path] = size

    def _layer(self, line: _Line) -> None:
        x, output = line.number(1, MOST_TENSOR_BYTES), line.number(1, MOST_TENSOR_BYTES)
        residual, gate = line.number(0, 1), line.number(0, MOST_TENSOR_BYTES)
        self.layers.append(PlannedLayer(line.name(), x, output, bool(residual), gate))

    def _kernel(self, line: _Line) -> None:
        self.last_kernel = line.number(self.last_kernel, len(self.layers) - 1)
        layer = self.layers[self.last_kernel]
        line.matching("(sm|compute)_[1-9][0-9]{1,2}[af]?", "an invalid architecture")
        self.next_file = line.number(self.next_file, self.counts.get("file", 0) - 1) + 1
        line.number(1, MOST_IMAGES)
        line.kernel()
        line.grid()
        if prod(line.number(1, MOST_THREADS) for _ in range(3)) > MOST_THREADS:
            raise ValueError("too many threads")
        line.number(0, MOST_SHARED_BYTES)
        line.number(0, 1)
        steps = line.number(0, MOST_INT), line.number(0, MOST_INT)
        letters = line.word()
        wanted = {"i", "o", *("r" if layer.has_residual else ""), *("g" if layer.gate_bytes else "")}
        if len(set(letters)) < len(letters) or not wanted <= set(letters) <= wanted | set("nst"):
            raise ValueError("other arguments than the layer's")
        sizes = layer.output_bytes, layer.input_bytes
        if any(step and size not in (2 * step, 4 * step) for step, size in zip(steps, sizes, strict=True)):
            raise ValueError("a step that is not the layer's")

    def _refused(self, line: _Line) -> None:
        self.refused = line.name()

    def _images(self, line: _Line) -> None:
        self.images = line.number(0, MOST_IMAGES)

    def _constants(self, line: _Line) -> None:
        self.constants = line.number(0, MOST_FILE_BYTES)
        if self.constants != self.files.get(CONSTANTS, 0):
            raise ValueError(f"another size than that of {CONSTANTS}")

    def _run(self, line: _Line) -> LayerStep:
        layer = self.layers[line.number(0, len(self.layers) - 1)]
        rows = line.number(1, MOST_IMAGES)
        sizes = layer.tensor_bytes
        line.number(len(sizes), len(sizes))
        places: list[Place] = []
        for number, size in enumerate(sizes):
            place = self._argument(line.word())
            if not isinstance(place, Place) or not self._has_room(place, rows * size):
                raise ValueError("a place that a tensor of the layer cannot have")
            if number == 1 and place.kind not in ("output", "buffer"):
                raise ValueError("a place that a tensor of the layer cannot have")
            places.append(place)
        x, output, *others = places
        return LayerStep(layer.name, rows, x, output, tuple(others), line.name())

    def _has_room(self, place: Place, size: int) -> bool:
        """Whether a place has room for that number of bytes of each image."""
        match place.kind:
            case "input":
                return size <= self.inputs[place.number].image_bytes
            case "output":
                return size <= self.outputs[place.number].image_bytes
            case "buffer":
                return size <= self.buffers[place.number]
            case "constant":
                return bool(self.images) and size * self.images <= self.constants - place.number

    def _launch(self, line: _Line) -> KernelStep:
        if GLUE not in self.files:
            raise ValueError(f"a kernel without {GLUE}")
        kernel, rows, grid = line.kernel(), line.number(1, MOST_IMAGES), line.grid()
        threads, output = line.number(1, MOST_THREADS), self._argument(line.word())
        arguments = tuple(self._argument(line.word()) for _ in range(line.number(1, MOST_ARGUMENTS)))
        if not isinstance(output, Place) or output.kind not in ("output", "buffer") or output not in arguments:
            raise ValueError("an output that is not among the arguments")
        step = KernelStep(kernel, rows, grid, threads, arguments, output, line.name())
        if not step.images_limit:
            raise ValueError("more rows than a launch takes")
        return step

    def _argument(self, word: str) -> Argument:
        match word[0]:
            case "n" if word == "n":
                return Rows()
            case "d":
                return _number(word[1:], -MOST_INT - 1, MOST_INT)
            case "f":
                if not re.fullmatch("f[0-9a-f]{8}", word):
                    raise ValueError("an invalid hexadecimal number")
                return float(struct.unpack(">f", bytes.fromhex(word[1:]))[0])
            case letter if letter in _LETTERS:
                count = {"i": len(self.inputs), "o": len(self.outputs), "b": len(self.buffers), "c": self.constants}
                return Place(_LETTERS[letter], _number(word[1:], 0, count[letter] - 1))
        raise ValueError("an unknown argument")


def _port(line: _Line) -> Port:
    size, dtype, rows = line.number(1, MOST_TENSOR_BYTES), line.word(), line.number(1, MOST_IMAGES)
    if dtype not in ELEMENT_BYTES:
        raise ValueError("an unknown data type")
    shape = tuple(line.number(1, MOST_INT) for _ in range(line.number(0, MOST_RANK)))
    if size != ELEMENT_BYTES[dtype] * rows * prod(shape):
        raise ValueError("a size that is not the shape's")
    return Port(line.name(), dtype, rows, shape, size)
