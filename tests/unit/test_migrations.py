"""The migrations make the tables that the code speaks of."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import migrations
from codegen.spec import Conv2d, Linear
from codegen.tiling import Part, Tiling
from farm.errors import LedgerError
from farm.jobs import BuildOptions, BuildResult, NewJob, NewSubmission, Outcome, Status
from farm.ledger import database_revision, open_ledger
from farm.ledger.engine import open_engine
from farm.ledger.schema import HEAD
from farm.ledger.tables import metadata
from farm.settings import Settings, load_settings

CHECKOUT = Path(migrations.__file__).parents[1]


def settings_in(folder: Path) -> Settings:
    return load_settings({"FARM_DATABASE_URL": f"sqlite:///{folder / 'farm.db'}"})


def migrate(folder: Path, revision: str) -> None:
    """To any revision, up or down."""
    engine = open_engine(settings_in(folder).database_url)
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["engine"] = engine
    found = database_revision(settings_in(folder))[0]
    (command.upgrade if found is None or found < revision else command.downgrade)(config, revision)
    engine.dispose()


SPEC_OF_0001 = {
    "operator": "conv2d",
    "channels": 3,
    "height": 8,
    "width": 9,
    "kernels": 10,
    "kernel_height": 3,
    "kernel_width": 3,
    "stride": [1, 2],
    "padding": [1, 0, 1, 2],
}
OPTIONS_OF_0001 = {"archs": ["sm_80", "sm_90"], "batch": 64, "form": "rolled", "optimisation": 3, "strict": False}
TILING = Tiling(8, 8, 1, 4, 3, 2)
ROWS_OF_0001: dict[str, list[dict[str, Any]]] = {
    "submissions": [{"id": "s1", "submitter": "ada", "submitted_at": 1.5}],
    "jobs": [
        {
            "number": 1,
            "id": "aaaa1111",
            "submission": "s1",
            "name": "net",
            "model": "/models/net.onnx",
            "model_digest": "cd" * 32,
            "request_digest": "ef" * 32,
            "options": json.dumps(OPTIONS_OF_0001),
            "skipped": "[]",
            "status": "SUCCEEDED",
            "reason": "",
            "stage": "",
            "done": 2,
            "total": 2,
            "hits": 1,
            "tries": 1,
            "submitted_at": 1.5,
            "started_at": 2.5,
            "finished_at": 3.5,
            "coordinator": None,
            "lease_until": None,
        }
    ],
    "builds": [
        {
            "id": 7,
            "job": "aaaa1111",
            "position": 0,
            "layer": "conv1",
            "input": "x",
            "output": "y",
            "spec": json.dumps(SPEC_OF_0001),
            "tiling": json.dumps({name: value for name, value in TILING.to_json().items() if name != "accumulate"}),
            "weights": "ab" * 32,
            "nonzeros": 11,
        }
    ],
    "results": [
        {
            "build": 7,
            "arch": arch,
            "job": "aaaa1111",
            "outcome": "built",
            "template_key": "11" * 32,
            "cubin_key": "22" * 32,
            "cubin": "33" * 32,
            "cubin_bytes": 4096,
            "ptx": "44" * 32,
            "fmas_kept": 5,
            "fmas_deleted": 6,
            "registers": 40,
            "spill_bytes": 8,
            "template_seconds": 0.5,
            "rewrite_seconds": 0.01,
            "ptxas_seconds": 0.2,
            "error": "",
            "command": "",
        }
        for arch in ("sm_80", "sm_90")
    ],
    "events": [{"id": 1, "job": "aaaa1111", "at": 2.5, "level": "info", "text": "succeeded"}],
}


def rows_in(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Everything that the tables of 0001 hold, column by column as it is stored."""
    with sqlite3.connect(folder / "farm.db") as connection:
        connection.row_factory = sqlite3.Row
        found = {
            table: [dict(row) for row in connection.execute(f"select * from {table} order by 1, 2")]
            for table in ROWS_OF_0001
        }
    connection.close()
    return found


def fill_0001(folder: Path) -> None:
    migrate(folder, "0001")
    with sqlite3.connect(folder / "farm.db") as connection:
        connection.execute("pragma foreign_keys = on")
        for table, rows in ROWS_OF_0001.items():
            for row in rows:
                names = ", ".join(row)
                places = ", ".join(f":{name}" for name in row)
                connection.execute(f"insert into {table} ({names}) values ({places})", row)
    connection.close()


def open_and_count(folder: Path) -> int:
    ledger = open_ledger(settings_in(folder))
    try:
        return sum(ledger.counts().values())
    finally:
        ledger.close()


def test_the_migrated_database_has_exactly_the_tables_of_the_code(tmp_path: Path) -> None:
    open_ledger(settings_in(tmp_path)).close()
    engine = open_engine(settings_in(tmp_path).database_url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_what_0001_held_is_one_part_with_all_groups(tmp_path: Path) -> None:
    fill_0001(tmp_path)
    ledger = open_ledger(settings_in(tmp_path))
    job = ledger.job("aaaa1111")
    [build] = ledger.builds(job.id)
    results = ledger.results(job.id)
    ledger.close()
    assert (job.status, job.done, job.total) == (Status.SUCCEEDED, 2, 2)
    assert job.options == BuildOptions(("sm_80", "sm_90"), code_limit_bytes=5_000_000)
    assert build.spec == Conv2d(3, 8, 9, 10, 3, 3, stride=(1, 2), padding=(1, 0, 1, 2))
    assert (build.id, build.tiling, build.parts) == (7, TILING, (Part(0, 3),))  # 10 kernels, 4 in a group
    assert (build.residual, build.rows, build.folded) == ("", 1, ())
    assert [(result.build, result.arch, result.part, result.registers) for result in results] == [
        (7, "sm_80", 0, 40),
        (7, "sm_90", 0, 40),
    ]


def test_results_of_other_parts_fit_beside_those_of_0001(tmp_path: Path) -> None:
    fill_0001(tmp_path)
    ledger = open_ledger(settings_in(tmp_path))
    [first, _] = ledger.results("aaaa1111")
    ledger.record_results([replace(first, part=1)])
    assert [(result.arch, result.part) for result in ledger.results("aaaa1111")] == [
        ("sm_80", 0),
        ("sm_80", 1),
        ("sm_90", 0),
    ]
    ledger.close()


def test_a_migrated_database_keeps_its_references_and_indexes(tmp_path: Path) -> None:
    for folder in (tmp_path / "old", tmp_path / "new"):
        folder.mkdir()
    fill_0001(tmp_path / "old")
    found = []
    for folder in (tmp_path / "old", tmp_path / "new"):
        open_ledger(settings_in(folder)).close()
        with sqlite3.connect(folder / "farm.db") as connection:
            assert connection.execute("pragma foreign_key_check").fetchall() == []
            keys = connection.execute("pragma foreign_key_list(results)").fetchall()
            indexes = connection.execute("select tbl_name, name from sqlite_master where type = 'index' order by 1, 2")
            found.append((keys, indexes.fetchall()))
        connection.close()
    assert found[0] == found[1]
    assert found[0][0]


def test_down_again_everything_is_as_it_was(tmp_path: Path) -> None:
    fill_0001(tmp_path)
    before = rows_in(tmp_path)
    migrate(tmp_path, "0002")
    migrate(tmp_path, "0001")
    assert rows_in(tmp_path) == before


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        (Conv2d(3, 8, 8, 8, 3, 3), (Part(0, 1), Part(1, 2))),
        (Conv2d(3, 8, 8, 8, 3, 3, dilation=(2, 2)), (Part(0, 2),)),
        (Linear(12, 8), (Part(0, 2),)),
    ],
)
def test_down_again_jobs_that_0001_would_misread_are_gone_and_no_others(
    spec: Conv2d | Linear, parts: tuple[Part, ...], tmp_path: Path
) -> None:
    fill_0001(tmp_path)
    before = rows_in(tmp_path)
    ledger = open_ledger(settings_in(tmp_path))
    [old] = ledger.builds("aaaa1111")
    new = replace(old, spec=spec, parts=parts)
    job = NewJob("bbbb2222", "new", "/models/new.onnx", "01" * 32, "23" * 32, BuildOptions(("sm_90",)), (new,))
    ledger.record_submission(NewSubmission("s2", "ada", (job,)))
    [build] = ledger.builds("bbbb2222")
    ledger.record_results([BuildResult(build.id, "sm_90", 0, Outcome.BUILT, "11" * 32, "22" * 32)])
    ledger.add_event("bbbb2222", "info", "planned")
    ledger.close()
    migrate(tmp_path, "0001")
    found = rows_in(tmp_path)
    assert len(found.pop("submissions")) == 2
    assert found == {table: rows for table, rows in before.items() if table != "submissions"}


def test_the_newest_revision_is_the_one_the_code_asks_for() -> None:
    assert ScriptDirectory(str(Path(migrations.__file__).parent)).get_current_head() == HEAD


def test_opening_twice_migrates_once(tmp_path: Path) -> None:
    assert database_revision(settings_in(tmp_path)) == (None, HEAD)
    open_ledger(settings_in(tmp_path)).close()
    assert database_revision(settings_in(tmp_path)) == (HEAD, HEAD)
    open_ledger(settings_in(tmp_path)).close()


def test_four_processes_may_open_a_fresh_database_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.map(open_and_count, [tmp_path] * 4) == [0] * 4


def test_a_database_of_a_newer_program_is_refused_in_words(tmp_path: Path) -> None:
    open_ledger(settings_in(tmp_path)).close()
    with sqlite3.connect(tmp_path / "farm.db") as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    connection.close()
    with pytest.raises(LedgerError, match="revision 9999"):
        open_ledger(settings_in(tmp_path)).close()


def test_an_up_to_date_ledger_opens_without_alembic(tmp_path: Path) -> None:
    open_ledger(settings_in(tmp_path)).close()
    code = (
        "import sys; from farm.ledger import open_ledger; from farm.settings import load_settings;"
        f"open_ledger(load_settings({{'FARM_DATABASE_URL': 'sqlite:///{tmp_path / 'farm.db'}'}}));"
        "sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "farm.db") as connection:
        connection.execute("create table results (mine text)")  # the last table that the first migration makes
    with pytest.raises(LedgerError, match="results already exists"):
        open_ledger(settings_in(tmp_path))
    tables = connection.execute("select name from sqlite_master where type = 'table'").fetchall()
    connection.close()
    assert tables == [("results",)]


def test_a_migration_that_cannot_be_locked_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "farm.db.lock").mkdir()
    with pytest.raises(LedgerError, match=r"has to be migrated, and .*farm.db.lock cannot be made"):
        open_ledger(settings_in(tmp_path))


def test_the_migrations_run_from_wherever_the_packages_lie(tmp_path: Path) -> None:
    packages, elsewhere = tmp_path / "100%(here)s", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("codegen", "farm", "migrations"):
        shutil.copytree(CHECKOUT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        f"import sys; sys.path.insert(0, {str(packages)!r}); import farm; assert {str(packages)!r} in farm.__file__;"
        "from farm.ledger import open_ledger; from farm.settings import load_settings;"
        f"open_ledger(load_settings({{'FARM_DATABASE_URL': 'sqlite:///{elsewhere / 'farm.db'}'}}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=elsewhere)
    assert database_revision(settings_in(elsewhere)) == (HEAD, HEAD)
