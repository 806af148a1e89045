"""The right that each call of S3 needs (Service Authorization Reference of Amazon S3)."""

from __future__ import annotations

RIGHTS = {
    "abort_multipart_upload": {"s3:AbortMultipartUpload"},
    "complete_multipart_upload": {"s3:PutObject"},
    "copy_object": {"s3:GetObject", "s3:PutObject"},
    "create_multipart_upload": {"s3:PutObject"},
    "delete_object": {"s3:DeleteObject"},
    "delete_objects": {"s3:DeleteObject"},
    # Without the right to list, a missing blob is reported as forbidden.
    "get_object": {"s3:GetObject", "s3:ListBucket"},
    "head_object": {"s3:GetObject", "s3:ListBucket"},
    "list_objects_v2": {"s3:ListBucket"},
    "put_object": {"s3:PutObject"},
    "upload_part": {"s3:PutObject"},
}

REMOVALS = {"delete_object", "delete_objects"}
"""Calls of `farm cache gc|rm|verify --repair`, which no worker makes."""
