"""The bucket's policy gives the rights that the store uses and no other; the lifecycle is one that boto3 would send."""

from __future__ import annotations

import ast
import json
from typing import Any

import botocore.session
import botocore.validate
import pytest

from farm.maintenance.gc import TRASH_SECONDS
from tests.house.tree import ROOT
from tests.infra.documents import INFRA
from tests.infra.s3_actions import REMOVALS, RIGHTS

POLICY: dict[str, Any] = json.loads((INFRA / "s3-policy.json").read_text())
LIFECYCLE: dict[str, Any] = json.loads((INFRA / "s3-lifecycle.json").read_text())


def used() -> set[str]:
    """The calls of S3 that farm/store/ makes."""
    methods = set(botocore.session.get_session().get_service_model("s3").operation_names)
    named = {"".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_") for name in methods}
    found = set()
    for path in (ROOT / "farm" / "store").glob("s3*.py"):
        tree = ast.parse(path.read_text())
        found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return found & (named | {"list_objects_v2"})


def allowed(role: str) -> dict[str, list[str]]:
    """The rights of a role, and on what."""
    rights: dict[str, list[str]] = {}
    for statement in POLICY["Statement"]:
        assert statement["Effect"] == "Allow"
        if any(name.endswith(f"/{role}") for name in statement["Principal"]["AWS"]):
            for action in statement["Action"]:
                rights.setdefault(action, []).extend(statement["Resource"])
    return rights


def test_the_store_s_calls_are_known_here() -> None:
    assert used() >= {"get_object", "put_object", "head_object", "upload_part"}
    assert used() <= set(RIGHTS)


def test_a_worker_has_the_rights_of_the_store_s_calls_but_removals_and_a_keeper_of_all() -> None:
    assert set(allowed("farm-worker")) == set().union(*(RIGHTS[call] for call in used() - REMOVALS))
    assert set(allowed("farm-keeper")) == set().union(*(RIGHTS[call] for call in used()))


def test_every_right_is_on_the_prefix_alone() -> None:
    for statement in POLICY["Statement"]:
        if statement["Action"] == ["s3:ListBucket"]:
            assert statement["Condition"] == {"StringLikeIfExists": {"s3:prefix": "farm/v1/*"}}
            assert statement["Resource"] == ["arn:aws:s3:::farm-bucket"]
        elif statement["Action"] == ["s3:DeleteObject"]:
            assert statement["Resource"] == ["arn:aws:s3:::farm-bucket", "arn:aws:s3:::farm-bucket/farm/v1/*"]
        else:
            assert all(place.startswith("arn:aws:s3:::farm-bucket/farm/v1/") for place in statement["Resource"])


def test_a_submitter_writes_blobs_and_no_record_and_a_reader_nothing() -> None:
    rights = allowed("farm-submitter")
    assert rights["s3:PutObject"] == rights["s3:AbortMultipartUpload"] == ["arn:aws:s3:::farm-bucket/farm/v1/cas/*"]
    assert set(allowed("farm-reader")) == {"s3:GetObject", "s3:ListBucket"}


def test_the_lifecycle_is_what_the_api_takes() -> None:
    shape = botocore.session.get_session().get_service_model("s3").shape_for("BucketLifecycleConfiguration")
    report = botocore.validate.ParamValidator().validate(LIFECYCLE, shape)
    assert not report.has_errors(), report.generate_report()


def test_unfinished_uploads_end_and_no_rule_removes_what_the_ledger_may_refer_to() -> None:
    rules = {rule["ID"]: rule for rule in LIFECYCLE["Rules"]}
    assert rules["unfinished-uploads"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    [expiring] = [rule for rule in LIFECYCLE["Rules"] if any("Expiration" in name for name in rule)]
    assert expiring["Filter"] == {"Prefix": "farm/v1/trash/"}
    assert expiring["Expiration"]["Days"] * 86_400 > TRASH_SECONDS


@pytest.mark.parametrize("rule", LIFECYCLE["Rules"], ids=lambda rule: rule["ID"])
def test_every_rule_is_on_and_on_the_prefix_alone(rule: dict[str, Any]) -> None:
    assert rule["Status"] == "Enabled"
    assert rule["Filter"]["Prefix"].startswith("farm/")
