"""The command line without a compiler: options, exit codes, one-line messages, valid JSON."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from cli.exit_codes import exit_code_of, exit_code_of_job
from cli.main import run
from cli.options.parse import arch_of, archs_of, input_shapes_of
from codegen.errors import ArchError, CheckpointError, DeviceError, EmulationError, TilingError, ToolchainError
from farm import errors
from farm.config.settings import load_settings
from farm.errors import UsageError
from farm.jobs.model import Status
from farm.ledger import open_ledger
from tests.unit.test_cli_output import job


@pytest.fixture(autouse=True)
def own_farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_STORE", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("FARM_DATABASE_URL", f"sqlite:///{tmp_path / 'farm.db'}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("FARM_EXECUTOR", "inline")
    monkeypatch.delenv("FARM_CONFIG", raising=False)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckpointError("m"), 2),
        (ArchError("m"), 2),
        (TilingError("m"), 2),
        (UsageError("m"), 2),
        (ToolchainError("m"), 32),
        (DeviceError("m"), 32),
        (errors.StoreError("m"), 32),
        (errors.LedgerError("m"), 32),
        (errors.NoWorkerError("m"), 32),
        (errors.BlobLostError("m"), 39),
        (errors.JobFailedError("m"), 100),
        (errors.UnfinishedError("m"), 101),
        (errors.NotFoundError("m"), 102),
        (errors.CancelledError("m"), 103),
        (EmulationError("m"), 1),
        (ValueError("m"), None),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: Exception, code: int | None) -> None:
    assert exit_code_of(error) == code


def test_each_end_of_a_job_has_its_exit_code() -> None:
    codes = {status: exit_code_of_job(job(status=status)) for status in Status}
    assert codes == {
        Status.SUCCEEDED: 0,
        Status.FAILED: 100,
        Status.CRASHED: 32,
        Status.CANCELLED: 103,
        Status.PENDING: 101,
        Status.RUNNING: 101,
    }


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("nonsense", 2, "No such command 'nonsense'. farm --help"),
        ("status --nope", 2, "farm status --help"),
        ("status -n 0", 2, "--limit 0: expected a number of at least 1. farm status --help lists the options."),
        ("status -n many", 2, "--limit many: expected a whole number."),
        ("status -n 3 --all", 2, "--all and --limit cannot be combined"),
        ("compile net.onnx --arch sm_90 -O 5", 2, "-O 5: expected a number of at most 3."),
        ("verify --network --batch 3 --input x.npy", 2, "--batch is for random inputs"),
        ("status --watch --json", 2, "--json prints one document"),
        ("status --state done", 2, "PENDING, RUNNING, SUCCEEDED"),
        ("compile", 2, "MODEL"),
        ("compile net.onnx", 2, "Missing option '--arch'"),
        ("compile net.onnx --arch sm_90 --template fancy", 2, "'--template': 'fancy' is not one of 'rolled', 'full'"),
        ("compile net.onnx --arch sm_90 --assembler fast", 2, "'auto', 'ptxas', 'direct', 'patch'"),
        ("compile net.onnx --arch sm_90 --max-code-size 0", 2, "--max-code-size 0: expected a size"),
        (
            "compile net.onnx --arch sm_90 --max-code-size much",
            2,
            "--max-code-size much: expected a size such as 500GB, 8GiB or 512MiB",
        ),
        ("compile net.onnx --arch sm_90 --input-shape 1,3", 2, "such as input:N,3,224,224"),
        ("compile missing.onnx --arch sm_90", 2, "missing.onnx: no such file"),
        ("compile net.onnx --arch sm_90 --name=", 2, "--name '' is empty"),
        ("inspect", 102, "there are no jobs yet: farm compile makes one"),
        ("inspect net.onnx", 102, "looks like a model. Try farm plan net.onnx"),
        ("verify net.farm", 102, "looks like a bundle. Try farm bundle show net.farm"),
        ("inspect abc", 102, "no such job: 'abc'"),
        ("logs abc", 102, "no such job: 'abc'"),
        ("fetch abc", 102, "no such job: 'abc'"),
        ("verify abc", 102, "no such job: 'abc'"),
    ],
)
def test_a_users_error_is_one_line_with_the_way_out(
    command: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command.split()) == code
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("farm: ")
    assert words in err
    assert err.count("\n") == 1


def test_an_unusable_database_is_one_line_and_32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FARM_DATABASE_URL", f"sqlite:///{tmp_path / 'file' / 'farm.db'}")
    assert run(["status"]) == 32
    words = capsys.readouterr().err
    assert "cannot be made (File exists): " in words
    assert words.endswith("or name another database in FARM_DATABASE_URL\n")


def test_a_broken_configuration_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("x = [")
    monkeypatch.setenv("FARM_CONFIG", str(broken))
    assert run(["status"]) == 2
    assert str(broken) in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plan {} --arch sm_90", "bundle show {}"])
def test_a_path_that_the_system_refuses_is_no_internal_error(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.format(f"{'a' * 300}/net.onnx").split()) == 2
    err = capsys.readouterr().err
    assert err.startswith("farm: ")
    assert err.count("\n") == 1


def test_a_command_that_may_not_open_a_path_names_it_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/private/farm.db")

    monkeypatch.setattr("farm.ledger.open_ledger", refuse)
    assert run(["status"]) == 2
    words = "farm: /private/farm.db: Permission denied: check the path and its permissions, or name another\n"
    assert capsys.readouterr().err == words


def test_doctor_names_the_setting_of_a_tool_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_NVCC", "/nowhere/nvcc")
    assert run(["doctor"]) == 32
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("toolchain  failed  no such program /nowhere/nvcc")
    assert "fix: name tools that run in FARM_NVCC and FARM_PTXAS, or unset both" in lines[1]


def test_an_unexpected_exception_is_shown_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("made by a test")

    monkeypatch.setattr("farm.ledger.open_ledger", fail)
    assert run(["status"]) == 1
    assert "ZeroDivisionError: made by a test" in capsys.readouterr().err


def test_without_a_command_there_is_help_and_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "compile" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["compile", "--help"], ["--version"]])
def test_help_and_version_are_not_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert capsys.readouterr().out


def test_a_first_status_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status"]) == 0
    assert "farm compile model.onnx --arch sm_90" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", ["status --json", "config show --json", "status --state succeeded,failed -a --json"]
)
def test_json_is_one_document(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == 0
    out, err = capsys.readouterr()
    assert isinstance(json.loads(out), dict)
    assert not err


def test_the_configuration_has_an_origin_for_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["executor"]["value"], settings["executor"]["origin"]) == ("inline", "environment FARM_EXECUTOR")
    assert settings["max_retries"]["origin"] == "default"


def test_the_database_is_upgraded_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert [run(["db", command]) for command in ("current", "upgrade", "upgrade", "current")] == [0] * 4
    first, upgraded, again, last = capsys.readouterr().out.splitlines()
    assert first.startswith("empty")
    assert upgraded.startswith("upgraded from empty to ")
    assert again == "nothing to do"
    assert last.split()[0] == upgraded.split()[-1]


def test_status_creates_the_ledger() -> None:
    assert run(["status"]) == 0
    assert open_ledger(load_settings()).counts() == {}


def test_architectures_may_be_repeated_and_listed() -> None:
    assert archs_of(["sm_80, sm_90", "9.0", ""]) == ("sm_80", "sm_90", "9.0")
    assert archs_of(["8.0;9.0+PTX"]) == ("8.0", "9.0+PTX")


@pytest.mark.parametrize("name", ["sm_90", "sm90", "90", "9.0", " SM_90 "])
def test_an_architecture_to_filter_by_may_be_spelt_as_for_compile(name: str) -> None:
    assert arch_of(name) == "sm_90"


def test_an_input_shape_has_a_name_that_may_hold_colons_and_sizes_that_stay_open() -> None:
    assert input_shapes_of(["a:b:N,3,8,8", "x:2x2"]) == {"a:b": (None, 3, 8, 8), "x": (2, 2)}


@pytest.mark.parametrize("value", ["1,2", ":1,2", "x:", "x:1,a", "x:0,3", "x:-1,3"])
def test_invalid_input_shapes_are_usage_errors(value: str) -> None:
    with pytest.raises(UsageError, match="such as input:N,3,224,224"):
        input_shapes_of([value])


def test_config_show_has_units_origins_and_the_tools(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_STORE_SIZE", "500GiB")
    monkeypatch.setenv("FARM_LEDGER_AGE", "90d")
    monkeypatch.setenv("FARM_PTXAS", "/nowhere/ptxas")
    monkeypatch.setenv("COLUMNS", "160")
    assert run(["config", "show"]) == 0
    lines = {tuple(line.split()[:2]): " ".join(line.split()[2:]) for line in capsys.readouterr().out.splitlines()}
    assert lines["[store]", "size"] == "FARM_STORE_SIZE 500 GiB environment"
    assert lines["[database]", "age"] == "FARM_LEDGER_AGE 90 d environment"
    assert lines["[toolchain]", "timeout"] == "FARM_TOOL_TIMEOUT 10 min default"
    assert "no such program /nowhere/ptxas: correct FARM_PTXAS" in lines["ptxas", "-"]
    assert any(words[:1] == ("g++",) for words in lines)


def test_config_show_as_json_has_raw_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_STORE_SIZE", "500GiB")
    monkeypatch.setenv("FARM_PRICE", "$0.04/core-hour")
    assert run(["config", "show", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    settings = document["settings"]
    assert settings["store_bytes"]["value"] == 500 * 2**30
    assert settings["store_bytes"]["origin"] == "environment FARM_STORE_SIZE"
    assert settings["tool_timeout_seconds"]["value"] == 600.0
    assert settings["ledger_age_seconds"]["value"] is None
    assert settings["read_only"]["value"] is False
    assert settings["price"]["value"] == "$0.04/core-hour"
    assert {"nvcc", "ptxas", "g++"} == set(document["tools"])


def test_a_damaged_database_file_has_a_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "farm.db").write_text("garbage" * 1000)
    assert run(["status"]) == 32
    assert "failed (file is not a database): move the file away" in capsys.readouterr().err


def test_a_demo_reports_a_folder_that_cannot_be_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run(["demo", str(tmp_path / "file")]) == 2
    assert "file: File exists. Name another folder." in capsys.readouterr().err
