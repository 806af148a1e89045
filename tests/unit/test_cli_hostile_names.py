"""Names and messages of others are printed as one line of printable characters, whatever they contain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli.exit_codes import NOT_FOUND
from codegen.ir.layer_spec import SkippedLayer
from farm.bundle.members import MANIFEST
from farm.jobs.model import BuildOptions, NewSubmission, Status
from farm.jobs.submission import new_job
from farm.worker.messages import CubinRequest, Failure, Fault, Request, Result, failed
from tests.bundle_samples import build, manifest_of, stored_cubins, write_layers
from tests.samples import checkpoint, layer
from tests.unit.farmyard import Farmyard
from tests.unit.onnx_models import conv_model, save
from tests.unit.test_cli_jobs import Typed, typed, yard

__all__ = ["typed", "yard"]

HOSTILE = "n\nFORGED\r\x1b[31mred\x9b0m\x85\x07\u202egnp.exe\u2066\u2028\u200b[/bold]"
"""Line breaks, escape sequences of 7 and 8 bits, marks of direction, Rich's markup."""


def assert_printable(*texts: str) -> None:
    for text in texts:
        lines = text.split("\n")
        assert all(line.isprintable() for line in lines), text
        assert not any(line.startswith("FORGED") for line in lines), text


def refuse(request: Request) -> Result | None:
    return failed(request, Failure(Fault.INPUT, HOSTILE)) if isinstance(request, CubinRequest) else None


@pytest.fixture
def failed_job(yard: Farmyard) -> str:
    net = checkpoint(layer(HOSTILE), skipped=(SkippedLayer(HOSTILE, "Conv", HOSTILE),))
    job = replace(new_job(net, BuildOptions(("sm_90",)), namespace="t", name=HOSTILE, store=yard.store), model=HOSTILE)
    [made] = yard.ledger.record_submission(NewSubmission("s-1", HOSTILE, (job,)))
    yard.run([made.id], refuse)
    yard.ledger.add_event(made.id, "error", HOSTILE)
    return made.id


@pytest.mark.parametrize("command", ["status", "inspect", "logs", "wait"])
def test_a_job_of_hostile_names_is_shown(command: str, failed_job: str, typed: Typed) -> None:
    arguments = [command] if command == "status" else [command, failed_job]
    _, out, err = typed(*arguments)
    assert "FORGED" in out
    assert_printable(out, err)


def test_a_name_that_is_not_utf_8_is_recorded_and_shown(yard: Farmyard, typed: Typed) -> None:
    name = b"caf\xe9".decode(errors="surrogateescape")  # as Python reads a file's name in Latin-1
    job = new_job(checkpoint(layer("conv1"), name=name), BuildOptions(("sm_90",)), namespace="t", name=name, store=None)
    [made] = yard.ledger.record_submission(NewSubmission("s-1", name, (replace(job, model=f"/models/{name}"),)))
    yard.ledger.add_event(made.id, "error", f"no such file: {name}")
    for command in ("inspect", "logs"):
        assert "caf" in typed(command, made.id)[1]


def test_json_keeps_hostile_names_as_they_are(failed_job: str, typed: Typed) -> None:
    out = typed("inspect", failed_job, "--json")[1]
    assert out.isascii()
    assert json.loads(out)["name"] == HOSTILE


def test_a_failed_job_of_hostile_names_is_explained(yard: Farmyard, typed: Typed) -> None:
    net = checkpoint(layer(HOSTILE))
    for name, seed in ((HOSTILE, 0), ("again", 1)):
        layers = checkpoint(*(layer(each.name, seed=seed) for each in net.layers), name=name)
        job = new_job(layers, BuildOptions(("sm_90",)), namespace="t", name=name, store=yard.store)
        [made] = yard.ledger.record_submission(NewSubmission(f"s-{seed}", "ada", (job,)))
        assert yard.run([made.id])[0].status is Status.SUCCEEDED
    _, out, err = typed("explain", f"latest/{HOSTILE}")
    assert "FORGED" in out
    assert_printable(out, err)


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", HOSTILE),
        ("compile", HOSTILE, "--arch", "sm_90"),
        ("status", "--arch", HOSTILE),
        (HOSTILE,),
        ("status", "--state", HOSTILE),
    ],
)
def test_an_error_of_hostile_words_is_one_line(arguments: tuple[str, ...], yard: Farmyard, typed: Typed) -> None:
    code, out, err = typed(*arguments)
    assert code
    assert "FORGED" in err
    assert_printable(out, err)
    assert len(err.splitlines()) == 1


def test_a_plan_of_a_hostile_file_name_is_shown(tmp_path: Path, yard: Farmyard, typed: Typed) -> None:
    path = save(tmp_path, conv_model(), f"{HOSTILE.replace('/', '_')}.onnx")
    code, out, err = typed("plan", str(path), "--arch", "sm_90")
    assert code == 0, err
    assert_printable(out, err)


def test_a_bundle_of_hostile_names_is_shown(tmp_path: Path, typed: Typed) -> None:
    write_layers(tmp_path, stored_cubins(), build(0, HOSTILE))
    manifest = manifest_of(tmp_path)
    manifest["job"]["name"] = manifest["skipped"][0]["name"] = HOSTILE
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    code, out, err = typed("bundle", "show", str(tmp_path))
    assert code == 0, err
    assert "FORGED" in out
    assert_printable(out, err)


@pytest.mark.parametrize("command", [["logs"], ["status", "--submission"], ["cancel", "--submission"], ["wait"]])
def test_a_name_that_is_not_unicode_is_of_no_job(command: list[str], typed: Typed) -> None:
    code, out, err = typed(*command, "\udcff")
    assert (code, out) == (NOT_FOUND, "")
    assert err.startswith("farm: no such ")
