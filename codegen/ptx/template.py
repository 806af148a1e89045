"""Template of a shape: dense PTX with a placeholder for every weight, made once by nvcc and kept.

A template is its PTX text. Its first line says for which spec, tiling and virtual architecture it was made. Its form,
rolled, full or with a table, holds the parts that the rewriter needs; reading a template checks them.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from codegen import kernels
from codegen.errors import TemplateError, TilingError, ToolError
from codegen.ir.layer_spec import LayerSpec, is_bounded, is_gated, prepares_inputs, spec_from_json
from codegen.ir.tiling import Tiling
from codegen.kernels.placeholders import FIRST_BIAS, FIRST_WEIGHT
from codegen.kernels.weight_stream import slots, taps
from codegen.ptx.full_form import FullForm
from codegen.ptx.template_lines import (
    Accumulation,
    Bias,
    Body,
    Bound,
    Branch,
    FirstGroup,
    GateLoad,
    Group,
    Label,
    Line,
    Load,
    MultiplyAdd,
    PreparedInput,
    Store,
    TableAddress,
    Turn,
    read_line,
)
from codegen.toolchain.temp_folders import TempFolder
from codegen.toolchain.tools import Toolchain, ToolLimits, run_tool

HEADER = "// farm.template "
NVCC_FLAGS = ("-ptx", "-O3", "-std=c++17")


def make_template(
    spec: LayerSpec, tiling: Tiling, virtual_arch: str, toolchain: Toolchain, limits: ToolLimits
) -> Template:
    """Compiles the operator for one shape: .cu to PTX, the slow step. Raises ToolError and TemplateError."""

    def command(folder: str | Path) -> list[str]:
        options = [f"-arch={virtual_arch}", f"-I{folder}", "-o", f"{folder}/template.ptx"]
        return [str(toolchain.nvcc), *NVCC_FLAGS, *options, str(kernels.source_path(tiling))]

    about = {"spec": spec.to_json(), "tiling": tiling.to_json(), "virtual_arch": virtual_arch}
    with TempFolder("template") as scratch:
        write_sources(spec, tiling, scratch)
        try:
            run_tool(command(scratch), limits=limits, temp_folder=scratch)
        except ToolError as error:
            # The folder is deleted: the command makes it again, where it is pasted.
            sources = [sys.executable, "-m", "codegen.ptx.template", json.dumps(about), "template"]
            error.command = f"{shlex.join(sources)} && {shlex.join(command('template'))}"
            raise
        ptx = (scratch / "template.ptx").read_text()
    return Template.from_ptx(f"{HEADER}{json.dumps(about)}\n{canonical(ptx)}")


def write_sources(spec: LayerSpec, tiling: Tiling, folder: Path) -> None:
    """Writes the headers that the kernel's .cu includes for this shape."""
    for name, text in kernels.tiled(spec, tiling).sources().items():
        (folder / name).write_text(text)


def canonical(ptx: str) -> str:
    """The PTX without the compiler's comments and empty lines, which may change from run to run."""
    lines = (line.strip() for line in ptx.splitlines())
    kept = (line for line in lines if line and (not line.startswith("//") or line.startswith("// farm.")))
    return "\n".join(kept) + "\n"


@dataclass(frozen=True, eq=False)
class Template:
    """Dense PTX of one shape, with what it was made for."""

    ptx: str
    spec: LayerSpec
    tiling: Tiling
    virtual_arch: str

    @staticmethod
    def from_ptx(ptx: str) -> Template:
        """Reads a template back. Raises TemplateError if the text is not one or lacks the form the rewriter needs."""
        first, _, _ = ptx.partition("\n")
        if not first.startswith(HEADER):
            raise TemplateError(f"not a template: the first line lacks '{HEADER.strip()}'")
        try:
            about = json.loads(first.removeprefix(HEADER))
            template = Template(ptx, spec_from_json(about["spec"]), Tiling(**about["tiling"]), about["virtual_arch"])
            template.form.check(template.spec, template.tiling)
        except (KeyError, TypeError, ValueError, TilingError) as error:
            raise TemplateError(f"not a template of this version: {type(error).__name__}: {error}") from None
        return template

    @cached_property
    def form(self) -> RolledForm | FullForm | TableForm:
        """The parts that the rewriter needs. Raises TemplateError if the text lacks them."""
        if self.tiling.reads_table:
            return TableForm.parse(self.ptx)
        return RolledForm.parse(self.ptx) if self.tiling.form == "rolled" else FullForm(self.ptx)

    @property
    def rolled(self) -> RolledForm:
        """The form of a rolled template. Raises TemplateError for a template of another form."""
        if not isinstance(self.form, RolledForm):
            raise TemplateError("a full template, and one of weights in a table, has no loop")
        return self.form


@dataclass(frozen=True)
class TableForm:
    """A template whose weights are a table: its text before and after the place of the table's declaration."""

    before: str
    after: str

    @staticmethod
    def parse(ptx: str) -> TableForm:
        """Raises TemplateError unless one kernel takes the table's address once."""
        lines = ptx.splitlines(keepends=True)
        places = [i for i, line in enumerate(lines) if isinstance(read_line(line.removesuffix("\n")), TableAddress)]
        if len(places) != 1 or ptx.count(_ENTRY) != 1:
            raise TemplateError("a template of weights in a table has one kernel, which takes the table's address once")
        lines[places[0]] = f"{lines[places[0]].partition(',')[0]},farm_table; // farm.table\n"
        before, entry, after = "".join(lines).partition(_ENTRY)
        return TableForm(before, entry + after)

    def check(self, spec: LayerSpec, tiling: Tiling) -> None:
        """Nothing: parsing has checked it."""


_ENTRY = ".visible .entry "


@dataclass(frozen=True, eq=False)
class Lines:
    """Consecutive lines of PTX as bytes, ready to be picked from by index."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    strings: list[str]
    """Each line, without its line feed."""
    typed: list[Line | None]
    """The meaning of each line."""

    @staticmethod
    def of(lines: list[str], typed: list[Line | None]) -> Lines:
        lengths = np.array([len(line) + 1 for line in lines], dtype=np.int64)
        text = np.frombuffer("".join(f"{line}\n" for line in lines).encode("ascii"), dtype=np.uint8)
        return Lines(text, np.cumsum(lengths) - lengths, lengths, lines, typed)

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def pieces(self) -> NDArray[np.object_]:
        """[lines]: each line as bytes, with its line feed."""
        ends = self.starts + self.lengths
        data, pieces = self.text.tobytes(), np.empty(len(self), dtype=np.object_)
        pieces[:] = [data[start:end] for start, end in zip(self.starts.tolist(), ends.tolist(), strict=True)]
        return pieces


@dataclass(frozen=True, eq=False)
class RolledForm:
    """A rolled template cut at its loop: what stands before it, one turn of it, what follows it.

    `weight_line[slot]` is the line of the turn that multiplies by the placeholder of that slot, `immediate_column` the
    column of its eight hex digits, `accumulator_of_slot` the register that is added to, `load_of_slot` an index into
    `load_lines`: the load of its multiplicand.
    Inputs of bounded and gated layers have lines of their own, `input_lines`; `input_of_slot` is the index of a slot's
    input. `bound_lines` hold the bounds of the inputs `bound_inputs`, lowest (0) or highest (1) as `bound_sides` say.
    `gate_lines` load the gates of the inputs: `gate_of_input` is an index into them. `accumulate_lines` add the packed
    accumulators (row, number) `accumulate_numbers` to those of float32. `bias_lines` and `store_lines` belong to the
    accumulators `bias_numbers` and `store_numbers` of a row.
    """

    head: str
    group_register: str
    first_group: FirstGroup
    column_turn: Turn | None
    """Loop over the listed columns; None for a kernel without such a list."""
    turn: Lines
    tail: Lines
    weight_line: NDArray[np.int64]
    immediate_column: NDArray[np.int64]
    accumulator_of_slot: list[str]
    load_lines: NDArray[np.int64]
    load_of_slot: NDArray[np.int64]
    input_lines: NDArray[np.int64]
    input_of_slot: NDArray[np.int64]
    bound_lines: NDArray[np.int64]
    bound_columns: NDArray[np.int64]
    bound_inputs: NDArray[np.int64]
    bound_sides: NDArray[np.int64]
    gate_lines: NDArray[np.int64]
    gate_of_input: NDArray[np.int64]
    accumulate_lines: NDArray[np.int64]
    accumulate_numbers: NDArray[np.int64]
    bias_lines: NDArray[np.int64]
    bias_columns: NDArray[np.int64]
    bias_numbers: NDArray[np.int64]
    store_lines: NDArray[np.int64]
    store_numbers: NDArray[np.int64]

    @staticmethod
    def parse(ptx: str) -> RolledForm:
        """Finds the loop, its placeholders and loads, and the epilogue. Raises TemplateError if one is missing."""
        texts = ptx.splitlines()
        lines = [read_line(line) for line in texts]
        labels, branches, groups = _of(Label, lines), _of(Branch, lines), _of(Group, lines)
        if len(labels) != 1 or len(branches) != 1 or len(groups) != 1:
            raise TemplateError(
                f"a rolled template has one loop and one group, this one {len(labels)} labels, "
                f"{len(branches)} branches and {len(groups)} groups: the operator's .cu needs control flow removed"
            )
        [(label, loop)], [(branch, closing)], [(group, number)] = labels, branches, groups
        if not (group < label < branch and closing.target == loop.name):
            raise TemplateError("a rolled template's group comes before its loop, and its branch closes the loop")
        head = texts[:label]
        first_groups, column_turns = _of(FirstGroup, lines[:label]), _of(Turn, lines[:label])
        if len(first_groups) != 1:
            raise TemplateError("expected exactly one farm.first_group marker")
        if len(column_turns) > 1:
            raise TemplateError("expected at most one farm.turn marker")
        in_turn = [i for i in range(label + 1, branch) if not texts[i].startswith(".pragma")]
        turn = Lines.of([texts[i] for i in in_turn], [lines[i] for i in in_turn])
        if "ret;" not in texts[branch + 1 :]:
            raise TemplateError("a rolled template ends in 'ret' after its loop")
        after = slice(branch + 1, texts.index("ret;", branch + 1) + 1)
        tail = Lines.of(texts[after], lines[after])
        weights = _weights(turn)
        # Neighbouring inputs may come in one vector load: it stays if any of its registers is used.
        loads, gates = _of(Load, turn.typed), _of(GateLoad, turn.typed)
        load_index = {register: index for index, (_, load) in enumerate(loads) for register in load.registers}
        inputs = {each.number: (i, each.source) for i, each in _of(PreparedInput, turn.typed)}
        if sorted(inputs) != list(range(len(inputs))):
            raise TemplateError("the inputs of the loop are not consecutive: the compiler dropped some")
        multiplicands = [each.multiplicand for _, each in weights]
        input_of_slot = [int(register[1:]) for register in multiplicands if register.startswith("x")]
        sources = [inputs[int(each[1:])][1] if each.startswith("x") else each for each in multiplicands]
        missing = set(sources) - load_index.keys()
        if missing:
            raise TemplateError(f"{len(missing)} multiplicands are not loaded from shared memory in the loop")
        numbers = [range(gate.first, gate.first + gate.count) for _, gate in gates]
        gated = {number: index for index, loaded in enumerate(numbers) for number in loaded}
        if gated and gated.keys() != inputs.keys():
            raise TemplateError("the gates of the loop are not those of its inputs")
        bounds, added = _of(Bound, turn.typed), _of(Accumulation, turn.typed)
        biases, stores = _of(Bias, tail.typed), _of(Store, tail.typed)
        if any(bias.bits - FIRST_BIAS != bias.number for _, bias in biases):
            raise TemplateError("a bias placeholder stands at another output channel's line")
        return RolledForm(
            head="\n".join(head) + "\n",
            group_register=number.register,
            first_group=first_groups[0][1],
            column_turn=column_turns[0][1] if column_turns else None,
            turn=turn,
            tail=tail,
            weight_line=_array(i for i, _ in weights),
            immediate_column=_array(each.column for _, each in weights),
            accumulator_of_slot=[each.accumulator for _, each in weights],
            load_lines=_array(i for i, _ in loads),
            load_of_slot=_array(load_index[register] for register in sources),
            input_lines=_array(inputs[number][0] for number in range(len(inputs))),
            input_of_slot=_array(input_of_slot),
            bound_lines=_array(i for i, _ in bounds),
            bound_columns=_array(bound.column for _, bound in bounds),
            bound_inputs=_array(bound.number for _, bound in bounds),
            bound_sides=_array(bound.side for _, bound in bounds),
            gate_lines=_array(i for i, _ in gates),
            gate_of_input=_array(gated[number] for number in range(len(gated))),
            accumulate_lines=_array(i for i, _ in added),
            accumulate_numbers=np.array([[each.row, each.number] for _, each in added], dtype=np.int64).reshape(-1, 2),
            bias_lines=_array(i for i, _ in biases),
            bias_columns=_array(bias.column for _, bias in biases),
            bias_numbers=_array(bias.number for _, bias in biases),
            store_lines=_array(i for i, _ in stores),
            store_numbers=_array(store.number for _, store in stores),
        )

    def check(self, spec: LayerSpec, tiling: Tiling) -> None:
        """Raises TemplateError unless every weight of a chunk has its placeholder, and every output its stores."""
        layer = kernels.tiled(spec, tiling)
        expected = len(slots(layer).weights)
        if len(self.weight_line) != expected:
            raise TemplateError(f"{len(self.weight_line)} placeholders in the loop, {expected} weights in a chunk")
        inputs = sum(map(len, taps(layer))) if prepares_inputs(layer.spec) else 0
        bounds, gated = (inputs * each(layer.spec) for each in (is_bounded, is_gated))
        if (len(self.input_lines), len(self.bound_lines), len(self.gate_of_input)) != (inputs, 2 * bounds, gated):
            found = (
                f"{len(self.bound_lines)} bounds and {len(self.gate_of_input)} gates of {len(self.input_lines)} inputs"
            )
            raise TemplateError(f"{found}, {inputs} in a chunk")
        if len(self.input_of_slot) != (expected if inputs else 0):
            raise TemplateError("a multiply-add of a bounded or gated layer takes an unprepared input")
        positions = tiling.rows * (2 if spec.data_type == "float16" else 1)
        stores = np.bincount(self.store_numbers)
        if not (stores == positions).all() or not np.array_equal(stores, np.bincount(self.bias_numbers)):
            raise TemplateError("an output channel is not stored once per output row, bias included")
        if (self.column_turn is not None) != tiling.listed:
            raise TemplateError("expected one farm.turn marker in a template of listed columns, and none in others")

    def head_from(self, group: int, head: str) -> str:
        """A head of a kernel whose blockIdx.z 0 is this K group."""
        return head.replace(f"{self.first_group.text}\n", f"mov.u32 {self.first_group.register},{group};\n")

    def closed(self, tails: list[bytes]) -> tuple[str, list[bytes]]:
        """Head and tails of a kernel of listed columns: each tail goes back to the head for the next columns."""
        if self.column_turn is None:
            return self.head, tails
        turn = self.column_turn
        head = self.head.replace(f"{turn.text}\n", f"{turn.text}\n$turn:\n")
        again = f"add.s32 {turn.column},{turn.column},{turn.step};\nbra $turn;\n".encode("ascii")
        return head, [tail.removesuffix(b"ret;\n") + again for tail in tails]


_Kind = TypeVar("_Kind")


def _of(kind: type[_Kind], lines: Sequence[Line | None]) -> list[tuple[int, _Kind]]:
    """The lines of one kind, with their indices."""
    return [(i, line) for i, line in enumerate(lines) if isinstance(line, kind)]


def _array(numbers: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(numbers), dtype=np.int64)


def _weights(turn: Lines) -> list[tuple[int, MultiplyAdd]]:
    """[slots]: the multiply-add of each placeholder and its line, between the body markers.

    Raises TemplateError if a placeholder is missing, stands twice or outside the body.
    """
    bodies = {body.at: i for i, body in _of(Body, turn.typed)}
    if bodies.keys() != {"begin", "end"}:
        raise TemplateError("the loop of a rolled template lacks its body markers")
    found: dict[int, tuple[int, MultiplyAdd]] = {}
    for i, each in _of(MultiplyAdd, turn.typed):
        if each.accumulator != each.addend or not bodies["begin"] < i < bodies["end"]:
            raise TemplateError(f"a multiply-add is not in place or not in the body: {turn.strings[i]}")
        if found.setdefault(each.bits - FIRST_WEIGHT, (i, each))[0] != i:
            raise TemplateError(f"placeholder 0f{each.bits:08X} stands twice")
    if sorted(found) != list(range(len(found))):
        raise TemplateError("the placeholders of the loop are not consecutive: the compiler dropped some")
    return [found[slot] for slot in range(len(found))]


def main(arguments: list[str]) -> int:
    """`python -m codegen.ptx.template DESCRIPTION FOLDER` writes the CUDA sources of a described template."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m codegen.ptx.template DESCRIPTION FOLDER\n")
        return 2
    about, folder = json.loads(arguments[0]), Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_sources(spec_from_json(about["spec"]), Tiling(**about["tiling"]), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
