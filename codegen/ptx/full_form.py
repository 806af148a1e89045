"""Full form: the paper's sparse code generation on a fully unrolled template (Dong et al. 2020, Algorithm 2).

One walk over the instructions with two maps: `values` from a placeholder to the real weight, `same_as` from a register
to the register or constant it equals. It takes plain `fmaf` code: the addend of a deleted multiply-add replaces its
result. Templates of kernels written elsewhere can therefore be rewritten too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from codegen.errors import TemplateError
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.kernels import canonical
from codegen.kernels.placeholders import immediate
from codegen.kernels.weight_stream import full_placeholders

_INSTRUCTION = re.compile(r"^(?P<guard>@!?%\w+\s+)?(?P<opcode>[a-z][\w.]*)\s+(?P<operands>[^;]*);$")
_OPERAND = re.compile(r"%\w+|0f[0-9A-F]{8}")


@dataclass(frozen=True)
class FullForm:
    """A template of the full form: the text, in which every weight and bias has a placeholder of its own."""

    ptx: str

    def check(self, spec: LayerSpec, tiling: Tiling) -> None:
        """Raises TemplateError unless every weight and bias has its placeholder where `substitute` can replace it."""
        placeholders = np.concatenate([each.ravel() for each in full_placeholders(canonical(spec))])
        substitute(self.ptx, {bits: bits for bits in placeholders.tolist()}, tiling.rows)


def substitute(ptx: str, values: Mapping[int, int], uses: int = 1) -> tuple[str, int, int]:
    """The PTX with the weights in it, and the numbers of multiply-adds kept and deleted.

    `values` maps the bits of every placeholder to the bits of its weight; 0 and -0.0 delete the instruction. An addend
    of a deleted instruction that is assigned twice is copied by `mov` rather than renamed.

    Raises TemplateError unless exactly `uses` instructions use each placeholder, as a factor of an unguarded
    multiply-add or product or as a term of a sum: any other use would compute with other weights.
    """
    weights = {
        immediate(key): (None if value in (0, 0x80000000) else immediate(value)) for key, value in values.items()
    }
    lines = ptx.splitlines()
    definitions = Counter(
        match["operands"].split(",")[0].strip() for line in lines if (match := _INSTRUCTION.match(line))
    )
    same_as: dict[str, str] = {}
    used: Counter[str] = Counter()
    out: list[str] = []
    kept = deleted = 0
    for line in lines:
        match = _INSTRUCTION.match(line)
        if match is None or "%f" not in line:
            # A block in braces reads registers and writes none that others read.
            inner = line.startswith("{")
            text = _OPERAND.sub(lambda operand: same_as.get(operand[0], operand[0]), line) if inner else line
            if any(operand in weights for operand in _OPERAND.findall(text)):
                raise TemplateError(f"a weight where none can be put in: {line}")
            out.append(text)
            continue
        opcode = match["opcode"]
        target, _, rest = match["operands"].partition(",")
        if opcode.startswith("st."):
            target, rest = "", match["operands"]
        rest = _OPERAND.sub(lambda operand: same_as.get(operand[0], operand[0]), rest)
        found = [operand for operand in _OPERAND.findall(rest) if operand in weights]
        if found and opcode == "mov.f32" and not match["guard"] and definitions[target] == 1:
            # nvcc holds a constant in a register of its own: back to an immediate.
            same_as[target] = found[0]
            continue
        if found:
            if match["guard"] or not _takes(opcode, rest, found):
                raise TemplateError(f"a weight where none can be put in: {line}")
            (placeholder,) = found
            used[placeholder] += 1
            weight = weights[placeholder]
            multiplies = opcode.startswith("fma.")
            if weight is None:
                addend = _addend(opcode, rest, placeholder)
                deleted += multiplies
                same_as.pop(target, None)
                if definitions[addend] > 1 or definitions[target] > 1:
                    out.append(f"mov.f32 {target},{addend};")
                else:
                    same_as[target] = addend
                continue
            kept += multiplies
            rest = rest.replace(placeholder, weight)
        same_as.pop(target, None)
        operands = f"{target},{rest}" if target else rest
        out.append(f"{match['guard'] or ''}{opcode} {operands};")
    if wrong := sum(used[placeholder] != uses for placeholder in weights):
        raise TemplateError(
            f"{wrong} of {len(weights)} placeholders are not used {uses} times each: another version of this program "
            "has made the template, or the compiler has dropped some"
        )
    return "\n".join(out) + "\n", kept, deleted


def _takes(opcode: str, operands: str, found: list[str]) -> bool:
    """Whether the instruction has one placeholder, as a factor of a product or a term of a sum."""
    parts = [operand.strip() for operand in operands.split(",")]
    return opcode.startswith(("fma.", "mul.", "add.")) and len(found) == 1 and found[0] in parts[:2]


def _addend(opcode: str, operands: str, placeholder: str) -> str:
    """Operand that the result equals when the weight is zero: c for fma x*0+c and for add c+0, zero for mul x*0."""
    parts = [operand.strip() for operand in operands.split(",")]
    if opcode.startswith("fma."):
        return parts[2]
    if opcode.startswith("add."):
        return next(part for part in parts if part != placeholder)
    return immediate(0)
