"""`farm submit`: checkpoints in, job ids out; a coordinator elsewhere compiles them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.exit_codes import OK, USAGE
from cli.options.build import (
    Accumulate,
    Archs,
    AssemblerName,
    Batch,
    InputShapes,
    KeepGoing,
    MaxCodeSize,
    Models,
    Name,
    NoTuning,
    Optimisation,
    Strict,
    TemplateForm,
    build_options_of,
    print_warnings,
    read_checkpoints,
)
from cli.options.parse import input_shapes_of
from cli.output.render import counted, job_json, print_json, print_warning, stderr, stdout

if TYPE_CHECKING:
    from farm.api import Farm

UNSERVED = "no coordinator is alive: the jobs wait until farm serve runs somewhere"


def submit(
    models: Models,
    arch: Archs,
    batch: Batch = 64,
    input_shape: InputShapes = None,
    template: TemplateForm = "rolled",
    accumulate: Accumulate = "float32",
    max_code_size: MaxCodeSize = "16MB",
    optimisation: Optimisation = 3,
    assembler: AssemblerName = "auto",
    no_tuning: NoTuning = False,
    strict: Strict = False,
    keep_going: KeepGoing = False,
    name: Name = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> int:
    """Submit pruned ONNX checkpoints and return at once with the jobs' ids; farm serve compiles them."""
    from farm.api import Farm
    from farm.config.settings import load_settings

    options = build_options_of(
        arch,
        batch=batch,
        template=template,
        accumulate=accumulate,
        max_code_size=max_code_size,
        optimisation=optimisation,
        strict=strict,
        tuning=not no_tuning,
        assembler=assembler,
    )
    shapes = input_shapes_of(input_shape or [])
    with Farm.open(load_settings()) as farm:
        checkpoints = read_checkpoints(farm, models, shapes, keep_going=keep_going)
        if not checkpoints:
            return USAGE
        submission = farm.submit(checkpoints, options, name=name)
        jobs = list({job.id: job for job in submission.jobs}.values())  # the same model twice is one job
        print_warnings(submission)
        if as_json:
            newest_first = [job_json(job) for job in reversed(jobs)]
            print_json({"submission": submission.id, "jobs": newest_first})
        else:
            for job in jobs:
                stdout().print(Text(f"{job.id}  {job.name}"), soft_wrap=True)
        warn_if_unserved(farm)
        if not as_json:
            print_next(len(jobs), submission.id)
    return OK if len(checkpoints) == len(models) else USAGE


def print_next(count: int, submission: str) -> None:
    """Where to look, on stderr: stdout has the ids alone."""
    way_on = f"next: farm status --watch   farm cancel --submission {submission}"
    stderr().print(Text(f"submitted {counted(count, 'job')}; {way_on}", style="dim"), soft_wrap=True)


def warn_if_unserved(farm: Farm) -> None:
    """Jobs that wait should not wait for nobody."""
    if not farm.is_served():
        print_warning(UNSERVED)
