"""The template of a shape: dense PTX with a placeholder for every weight, made once by nvcc and kept.

A template is its PTX text, and that text describes itself: its first line says for which spec, tiling and virtual
architecture it was made. Parsing finds what the rewriter needs and checks all that the rewriter relies on.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codegen import kernels
from codegen.errors import TemplateError, TilingError, ToolError
from codegen.ir.layer_spec import LayerSpec, is_bounded, is_gated, prepares_inputs, spec_from_json
from codegen.ir.tiling import Tiling
from codegen.kernels.placeholders import FIRST_BIAS, FIRST_WEIGHT
from codegen.kernels.weight_stream import full_placeholders, slots, taps
from codegen.ptx.full_form import substitute
from codegen.toolchain.temp_folders import ScratchFolder
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
    with ScratchFolder("template") as scratch:
        write_sources(spec, tiling, scratch)
        try:
            run_tool(command(scratch), limits=limits, scratch=scratch)
        except ToolError as error:
            # The folder goes: by hand it is made again, in the directory where the command is pasted.
            sources = [sys.executable, "-m", "codegen.ptx.template", json.dumps(about), "template"]
            error.command = f"{shlex.join(sources)} && {shlex.join(command('template'))}"
            raise
        ptx = (scratch / "template.ptx").read_text()
    return Template.from_ptx(f"{HEADER}{json.dumps(about)}\n{canonical(ptx)}")


def write_sources(spec: LayerSpec, tiling: Tiling, folder: Path) -> None:
    """The headers that the operator's .cu includes, for this shape."""
    for name, text in kernels.tiled(spec, tiling).sources().items():
        (folder / name).write_text(text)


def canonical(ptx: str) -> str:
    """The PTX without what changes from run to run or says nothing: the compiler's comments and empty lines."""
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
            if template.tiling.reads_table:
                template.around_table()
            elif template.tiling.form == "full":
                template.check_full()
            else:
                template.rolled.check(template)
        except (KeyError, TypeError, ValueError, TilingError) as error:
            raise TemplateError(f"not a template of this version: {type(error).__name__}: {error}") from None
        return template

    @cached_property
    def rolled(self) -> RolledForm:
        """The parts of a rolled template."""
        return RolledForm.parse(self.ptx)

    def check_full(self) -> None:
        """Every weight and bias has its placeholder where it can be put in: put back for themselves, all find it."""
        placeholders = np.concatenate([each.ravel() for each in full_placeholders(kernels.canonical(self.spec))])
        substitute(self.ptx, {bits: bits for bits in placeholders.tolist()}, self.tiling.rows)

    def around_table(self) -> tuple[str, str]:
        """The text before and behind the place of the table. Raises TemplateError if the kernel takes no such."""
        if len(_TABLE.findall(self.ptx)) != 1 or self.ptx.count(_ENTRY) != 1:
            raise TemplateError("a template of weights in a table has one kernel, which takes the table's address once")
        before, entry, after = _TABLE.sub(r"\1farm_table; // farm.table", self.ptx).partition(_ENTRY)
        return before, entry + after


_ENTRY = ".visible .entry "
_TABLE = re.compile(r"^(mov\.u64 %rd\d+,)(?:farm_table|0); // farm\.table$", re.MULTILINE)
"""From compute_90 on nvcc has ptxas read its PTX, in which the table is not declared yet."""
_LABEL = re.compile(r"^(\$\w+):$")
_BRANCH = re.compile(r"\bbra\b")
_LOAD = re.compile(r"^ld\.(?:shared|global\.nc)(?:\.v[24])?\.[fub]32\s+(%[fr]\d+|\{[^}]*\}),")
_FMA = re.compile(r"^fma\.rn\.f32 (%f\d+),(%f\d+|x\d+),0f([0-9A-F]{8}),(%f\d+);$")
_INPUT = re.compile(r"^(?:mov\.f32 x(\d+),(%f\d+)|mul\.rn\.f(?:32|16x2) x(\d+),(%[fr]\d+),g\3);$")
_GATES = re.compile(r"^ld\.shared.* // farm\.gates (\d+) (\d+)$")
_BOUND = re.compile(r"^mov\.f32 b,0f([0-9A-F]{8}); .*// farm\.(low|high) (\d+)$")
_PACKED_FMA = re.compile(r"^mov\.b32 w,0x([0-9A-F]{8}); fma\.rn\.f16x2 (%r\d+),(%r\d+|x\d+),w,(%r\d+);$")
_ACCUMULATE = re.compile(r"^\{.*\} // farm\.accumulate (\d+) (\d+)$")
_FIRST_GROUP = re.compile(r"^(mov\.u32 %r\d+,)0; // farm\.first_group$", re.MULTILINE)
_TURN = re.compile(r"^mov\.u32 (%r\d+),%r\d+; // farm\.turn (%r\d+)$", re.MULTILINE)
_BIAS = re.compile(r"^add\.rn\.f32 (%f\d+),\1,0f([0-9A-F]{8}); // farm\.bias (\d+)$")
_STORE = re.compile(r"^\{.*st\.global.*\} // farm\.store (\d+)$")


@dataclass(frozen=True, eq=False)
class Lines:
    """Consecutive lines of PTX as bytes, ready to be picked from by index."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @staticmethod
    def of(lines: list[str]) -> Lines:
        lengths = np.array([len(line) + 1 for line in lines], dtype=np.int64)
        text = np.frombuffer("".join(f"{line}\n" for line in lines).encode("ascii"), dtype=np.uint8)
        return Lines(text, np.cumsum(lengths) - lengths, lengths)

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def pieces(self) -> NDArray[np.object_]:
        """[lines]: each as bytes."""
        ends = self.starts + self.lengths
        data, pieces = self.text.tobytes(), np.empty(len(self), dtype=np.object_)
        pieces[:] = [data[start:end] for start, end in zip(self.starts.tolist(), ends.tolist(), strict=True)]
        return pieces


@dataclass(frozen=True, eq=False)
class RolledForm:
    """A rolled template cut at its loop: what stands before it, one turn of it, what follows it.

    `weight_line[slot]` is the line of the turn that multiplies with the placeholder of that slot, `immediate_column`
    the column of its eight hex digits, `sum_of_slot` the register that is added to, `load_of_slot` an index into
    `load_lines`: the load which feeds it.
    Inputs of bounded and gated layers have lines of their own, `input_lines`; `input_of_slot` is which of them a slot
    multiplies with. There are `bound_lines` for the bounds of the inputs `bound_inputs`, the lowest (0) and the highest
    (1) as `bound_sides` say, and `gate_lines`, which load the gates of the inputs: `gate_of_input` is an index into
    them. `accumulate_lines` add up what a chunk gave the sums (row, number) `accumulate_sums`. `bias_lines`
    and `store_lines` belong to the sums `bias_sums`, `store_sums` of a row.
    """

    head: str
    group_register: str
    turn: Lines
    tail: Lines
    weight_line: NDArray[np.int64]
    immediate_column: NDArray[np.int64]
    sum_of_slot: list[str]
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
    accumulate_sums: NDArray[np.int64]
    bias_lines: NDArray[np.int64]
    bias_columns: NDArray[np.int64]
    bias_sums: NDArray[np.int64]
    store_lines: NDArray[np.int64]
    store_sums: NDArray[np.int64]

    @staticmethod
    def parse(ptx: str) -> RolledForm:
        """Finds the loop, its placeholders and loads, and the epilogue."""
        lines = ptx.splitlines()
        labels = [i for i, line in enumerate(lines) if _LABEL.match(line)]
        branches = [
            i for i, line in enumerate(lines) if _BRANCH.search(line) and not line.startswith("{")
        ]  # a loop in a line stays in it
        groups = [i for i, line in enumerate(lines) if line.startswith("// farm.group ")]
        if len(labels) != 1 or len(branches) != 1 or len(groups) != 1:
            raise TemplateError(
                f"a rolled template has one loop and one group, this one {len(labels)} labels, "
                f"{len(branches)} branches and {len(groups)} groups: the operator's .cu needs control flow removed"
            )
        label, branch, group = labels[0], branches[0], groups[0]
        if not (group < label < branch and lines[branch].endswith(f"{lines[label][:-1]};")):
            raise TemplateError("a rolled template's group comes before its loop, and its branch closes the loop")
        turn = [line for line in lines[label + 1 : branch] if not line.startswith(".pragma")]
        tail = lines[branch + 1 :]
        if "ret;" not in tail:
            raise TemplateError("a rolled template ends in 'ret' after its loop")
        slots, immediate_column, sources, sums = _weights(turn)
        # Neighbouring inputs may come in one vector load: it stays if any of its registers is used.
        gates = [(i, int(m[1]), int(m[2])) for i, line in enumerate(turn) if (m := _GATES.match(line))]
        ungated = {i: line for i, line in enumerate(turn) if not _GATES.match(line)}
        loads = [(i, re.findall(r"%[fr]\d+", match[1])) for i, line in ungated.items() if (match := _LOAD.match(line))]
        load_index = {register: index for index, (_, registers) in enumerate(loads) for register in registers}
        inputs = {int(m[1] or m[3]): (i, m[2] or m[4]) for i, line in enumerate(turn) if (m := _INPUT.match(line))}
        if sorted(inputs) != list(range(len(inputs))):
            raise TemplateError("the inputs of the loop are not consecutive: the compiler dropped some")
        bounds = [(i, m) for i, line in enumerate(turn) if (m := _BOUND.match(line))]
        of_slots = [int(register[1:]) for register in sources if register.startswith("x")]
        sources = [inputs[int(each[1:])][1] if each.startswith("x") else each for each in sources]
        missing = set(sources) - load_index.keys()
        if missing:
            raise TemplateError(f"{len(missing)} multiplicands are not loaded from shared memory in the loop")
        gated = {number: g for g, (_, first, count) in enumerate(gates) for number in range(first, first + count)}
        if gated and gated.keys() != inputs.keys():
            raise TemplateError("the gates of the loop are not those of its inputs")
        added = [(i, *map(int, match.groups())) for i, line in enumerate(turn) if (match := _ACCUMULATE.match(line))]
        biases = [(i, line.index("0f") + 2, m) for i, line in enumerate(tail) if (m := _BIAS.match(line))]
        stores = [(i, int(m.group(1))) for i, line in enumerate(tail) if (m := _STORE.match(line))]
        if any(int(m.group(2), 16) - FIRST_BIAS != int(m.group(3)) for _, _, m in biases):
            raise TemplateError("a bias placeholder stands at another kernel's line")
        return RolledForm(
            head="\n".join(lines[:label]) + "\n",
            group_register=lines[group].split()[-1],
            turn=Lines.of(turn),
            tail=Lines.of(tail[: tail.index("ret;") + 1]),
            weight_line=slots,
            immediate_column=immediate_column,
            sum_of_slot=sums,
            load_lines=np.array([i for i, _ in loads], dtype=np.int64),
            load_of_slot=np.array([load_index[register] for register in sources], dtype=np.int64),
            input_lines=np.array([inputs[number][0] for number in range(len(inputs))], dtype=np.int64),
            input_of_slot=np.array(of_slots, dtype=np.int64),
            bound_lines=np.array([i for i, _ in bounds], dtype=np.int64),
            bound_columns=np.array([m.start(1) for _, m in bounds], dtype=np.int64),
            bound_inputs=np.array([int(m[3]) for _, m in bounds], dtype=np.int64),
            bound_sides=np.array([("low", "high").index(m[2]) for _, m in bounds], dtype=np.int64),
            gate_lines=np.array([i for i, _, _ in gates], dtype=np.int64),
            gate_of_input=np.array([gated[number] for number in range(len(gated))], dtype=np.int64),
            accumulate_lines=np.array([i for i, _, _ in added], dtype=np.int64),
            accumulate_sums=np.array([[p, j] for _, p, j in added], dtype=np.int64).reshape(-1, 2),
            bias_lines=np.array([i for i, _, _ in biases], dtype=np.int64),
            bias_columns=np.array([column for _, column, _ in biases], dtype=np.int64),
            bias_sums=np.array([int(m.group(3)) for _, _, m in biases], dtype=np.int64),
            store_lines=np.array([i for i, _ in stores], dtype=np.int64),
            store_sums=np.array([kernel for _, kernel in stores], dtype=np.int64),
        )

    def check(self, template: Template) -> None:
        """Every weight of one chunk of one group has its placeholder, and every kernel its stores."""
        layer = kernels.tiled(template.spec, template.tiling)
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
            raise TemplateError("a multiply-add of a bounded or gated layer takes an input as it is")
        positions = template.tiling.rows * (2 if template.spec.data_type == "float16" else 1)
        per_sum = np.bincount(self.store_sums)
        if not (per_sum == positions).all() or not np.array_equal(self.store_sums, self.bias_sums):
            raise TemplateError("a kernel's sums are not stored once per output row, bias included")
        if len(_TURN.findall(self.head)) != template.tiling.listed:
            raise TemplateError("a template of listed columns says in one place which its first column is")
        if len(_FIRST_GROUP.findall(self.head)) != 1:
            raise TemplateError("a rolled template says in one place which its first K group is")

    def head_from(self, group: int, head: str) -> str:
        """A head of a kernel whose blockIdx.z 0 is this K group."""
        return _FIRST_GROUP.sub(rf"\g<1>{group};", head)

    def closed(self, tails: list[bytes]) -> tuple[str, list[bytes]]:
        """Head and tails of a kernel of listed columns: each tail goes back to the head for the next columns."""
        [(column, step)] = _TURN.findall(self.head)
        head = _TURN.sub(r"\g<0>\n$turn:", self.head)
        again = f"add.s32 {column},{column},{step};\nbra $turn;\n".encode("ascii")
        return head, [tail.removesuffix(b"ret;\n") + again for tail in tails]


def _weights(turn: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str], list[str]]:
    """Per slot its line, the column of its immediate, its multiplicand and its sum; all are between the two markers."""
    try:
        begin, end = turn.index("// farm.body.begin"), turn.index("// farm.body.end")
    except ValueError:
        raise TemplateError("the loop of a rolled template lacks its body markers") from None
    found: dict[int, tuple[int, int, str, str]] = {}
    for i, line in enumerate(turn):
        match, column = _FMA.match(line), 3
        if match:
            total, multiplicand, bits, addend = match.groups()
        else:
            match, column = _PACKED_FMA.match(line), 1
            bits, total, multiplicand, addend = match.groups() if match else ("", "", "", "")
        if match:
            if total != addend or not begin < i < end:
                raise TemplateError(f"a multiply-add is not in place or not in the body: {line}")
            if found.setdefault(int(bits, 16) - FIRST_WEIGHT, (i, match.start(column), multiplicand, total))[0] != i:
                raise TemplateError(f"placeholder 0f{bits} stands twice")
    if sorted(found) != list(range(len(found))):
        raise TemplateError("the placeholders of the loop are not consecutive: the compiler dropped some")
    rows = [found[slot] for slot in range(len(found))]
    return (
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows], dtype=np.int64),
        [row[2] for row in rows],
        [row[3] for row in rows],
    )


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
