"""`farm bundle`: what a bundle holds is shown, and what is damaged is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO
from zipfile import ZipFile

import pytest
from onnx import TensorProto, helper

from cli.main import run
from cli.output.format import magnitude
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import SkippedLayer
from codegen.model_zoo import lenet5, write_network
from farm.bundle import members
from farm.bundle.ptx import KernelPtx
from farm.bundle.reader import Bundle
from farm.bundle.writer import check_target, write_bundle
from farm.runtime.lowering import RefusedError
from farm.runtime.planner import plan_network
from tests.bundle_samples import JOB, SPEC, TOOLS, build, contents, manifest_of, result, stored_cubins, validator
from tests.unit.onnx_models import info, model, save, tensor, values

SKIPPED = SkippedLayer("fc", "Gemm", "its weights are not constant", 60, SPEC.multiply_adds)
PTX = b".version 9.0\n.target sm_80\n"


@pytest.fixture(params=["bundle", "bundle.farm"])
def bundle(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Bundle with LeNet-5's network, one layer, PTX, and a skipped layer of as many multiply-adds."""
    write_network(tmp_path / "net.onnx", lenet5(0.9, 0))
    return written(tmp_path / str(request.param), tmp_path / "net.onnx")


def written(path: Path, model_path: Path) -> Path:
    """A bundle of a model's network that has of its layers the first, conv1."""
    checkpoint = read_checkpoint(model_path)
    assert checkpoint.residual_graph is not None
    store = stored_cubins()
    job = replace(JOB, network=store.put(checkpoint.residual_graph.with_layers(checkpoint.layers)), skipped=(SKIPPED,))
    results = [result(0, "sm_80"), result(0, "sm_90")]
    write_bundle(path, job, [build(0, "conv1")], results, TOOLS, store, ptx=[KernelPtx(results[1], "compute_80", PTX)])
    return path


def test_ptx_is_a_file_of_the_launch_whose_cubins_were_made_from_it(bundle: Path) -> None:
    opened = Bundle(bundle)
    validator().validate(manifest_of(bundle))
    [layer] = opened.layers.values()
    [ptx] = layer.ptx
    assert (ptx.path, ptx.arch, opened.cubin(ptx)) == ("conv1/compute_80.ptx", "compute_80", PTX)
    assert ptx.launch == layer.cubins[0].launch


def test_a_gpu_runs_its_cubins_and_ptx_where_none_fits(bundle: Path) -> None:
    layer = Bundle(bundle).layers["conv1"]
    chosen = {gpu: [each.arch for each in layer.cubins_for(gpu)] for gpu in ("sm_75", "sm_86", "sm_90", "sm_120")}
    assert chosen == {"sm_75": [], "sm_86": ["sm_80"], "sm_90": ["sm_90"], "sm_120": ["compute_80"]}


def test_show_says_what_is_compiled_and_what_is_left(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bundle", "show", str(bundle)]) == 0
    said = capsys.readouterr().out
    assert "network      input float32 [N, 1, 28, 28] -> output float32 [N, 10]" in said
    assert "compiled     1 of 2 layers with weights, 50.0% of the multiply-adds, batch 64" in said
    assert "glue         Flatten 1, MaxPool 2: 50.0% of the multiply-adds, for the framework" in said
    assert (
        f"skipped    Gemm fc ({magnitude(SPEC.multiply_adds)} multiply-adds, 50.0%): its weights are not const" in said
    )
    for arch in ("sm_80", "sm_90", "compute_80"):
        assert arch in said


def test_show_names_operators_that_nothing_here_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    branch = helper.make_graph([helper.make_node("Neg", ["c"], ["n"])], "branch", [], [info("n", None)])
    other = helper.make_graph([helper.make_node("Abs", ["c"], ["a"])], "other", [], [info("a", None)])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv1"),
        helper.make_node("If", ["flag"], ["z"], "choose", then_branch=branch, else_branch=other),
        helper.make_node("Gelu", ["z"], ["y"], "gelu", domain="com.microsoft"),
    ]
    inputs = [info("x", ["N", 3, 8, 8]), info("flag", [], TensorProto.BOOL)]
    proto = model(nodes, [tensor("w", values(4, 3, 3, 3))], inputs=inputs)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    path = written(tmp_path / "bundle", save(tmp_path, proto))
    assert run(["bundle", "show", str(path)]) == 0
    assert "glue         If 1, com.microsoft.Gelu 1: " in capsys.readouterr().out


def test_an_operator_that_is_not_onnxs_is_not_run_as_onnxs_of_its_name(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv1"),
        helper.make_node("Relu", ["c"], ["y"], "own", domain="my.operators"),
    ]
    proto = model(nodes, [tensor("w", values(4, 3, 3, 3))])
    proto.opset_import.append(helper.make_opsetid("my.operators", 1))
    bundle = Bundle(written(tmp_path / "bundle", save(tmp_path, proto)))
    with pytest.raises(RefusedError, match=r"does not run my\.operators\.Relu: use"):
        plan_network(bundle.network, {name: layer.spec for name, layer in bundle.layers.items()})


def test_show_counts_every_file_of_the_bundle(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if bundle.is_dir():
        sizes = [each.stat().st_size for each in bundle.rglob("*") if each.is_file()]
    else:
        sizes = [each.file_size for each in ZipFile(bundle).infolist()]
    assert Bundle(bundle).file_bytes == sum(sizes)
    for command in ("show", "verify"):
        assert run(["bundle", command, str(bundle)]) == 0
        assert f"{len(sizes)} files" in capsys.readouterr().out


def test_show_gives_one_json_document(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bundle", "show", str(bundle), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["archs"] == ["sm_90", "sm_80"]
    assert document["glue"] == {"Flatten": 1, "MaxPool": 2}
    assert document["left_share"] == 0.5
    [layer] = document["layers"]
    assert layer["bytes"] == {"sm_90": 15, "sm_80": 15, "compute_80": len(PTX)}


def test_a_whole_bundle_passes(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bundle", "verify", str(bundle)]) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"{bundle.name}: 7 files, all digests match")


@pytest.mark.parametrize("bundle", ["bundle"], indirect=True)
@pytest.mark.parametrize(
    "name", ["conv1/sm_80.cubin", "conv1/sm_90.cubin", "conv1/compute_80.ptx", "network.onnx", "manifest.json"]
)
def test_a_flipped_byte_is_named(name: str, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((bundle / name).read_bytes())
    place = data.index(b"conv1") if name == "manifest.json" else 3
    data[place] ^= 1
    (bundle / name).write_bytes(data)
    assert run(["bundle", "verify", str(bundle)]) == 39
    [said] = capsys.readouterr().err.splitlines()
    assert f"{name} is damaged" in said


@pytest.mark.parametrize("bundle", ["bundle.farm"], indirect=True)
def test_a_flipped_byte_within_one_file_is_named(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(bundle.read_bytes())
    data[data.index(b"cubin 0 sm_80")] ^= 1
    bundle.write_bytes(data)
    assert run(["bundle", "verify", str(bundle)]) == 39
    assert "conv1/sm_80.cubin is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("bundle", ["bundle"], indirect=True)
def test_a_missing_file_is_named(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / "conv1" / "sm_80.cubin").unlink()
    assert run(["bundle", "verify", str(bundle)]) == 39
    assert "conv1/sm_80.cubin is missing" in capsys.readouterr().err


def test_something_else_than_a_bundle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.farm").write_bytes(b"no zip")
    for name, why in (
        ("", ": it has no manifest.json"),
        ("x.farm", ": File is not a zip"),
        ("y", ": it does not exist"),
    ):
        assert run(["bundle", "show", str(tmp_path / name)]) == 2
        assert f"{tmp_path / name} is not a bundle{why}" in capsys.readouterr().err


@pytest.mark.parametrize("bundle", ["bundle"], indirect=True)
def test_a_bundle_with_ptx_is_replaced_whole(bundle: Path) -> None:
    results = [result(0, "sm_80"), result(0, "sm_90")]
    write_bundle(bundle, JOB, [build(0, "conv1")], results, TOOLS, stored_cubins())
    assert set(contents(bundle)) == {"manifest.json", "provenance.json", "conv1/sm_80.cubin", "conv1/sm_90.cubin"}


def test_a_compile_may_write_over_a_bundle_in_either_form(bundle: Path) -> None:
    check_target(bundle, JOB.name)


@pytest.mark.parametrize("bundle", ["bundle.farm"], indirect=True)
def test_an_archive_is_opened_once_for_all_of_its_files(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def counted(file: BinaryIO) -> ZipFile:
        opened.append("archive")
        return ZipFile(file)

    monkeypatch.setattr(members, "ZipFile", counted)
    assert not Bundle(bundle).damage()
    assert opened == ["archive"]
