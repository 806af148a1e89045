"""Stores of blobs, under their digests, and of action records."""

from __future__ import annotations

from pathlib import Path

from farm.config.settings import Settings, node_cache_folder
from farm.errors import UsageError
from farm.signing import MAKE_KEY, read_keyring
from farm.store.cache_folder import CacheFolder
from farm.store.contract import Store
from farm.store.disk import DiskStore
from farm.store.s3 import S3Store
from farm.store.signed import SignedStore
from farm.store.tiered import TieredStore


def open_store(settings: Settings) -> Store:
    """Opens the configured store; S3 has this machine's cache in front. Nothing is created before the first write.

    Raises UsageError for unreadable signing keys, and for S3 without any.
    """
    if settings.signing_keys is not None:
        return SignedStore(_open_unsigned(settings), read_keyring(settings.signing_keys))
    if settings.store_url.startswith("s3://"):
        raise UsageError(
            "a store in S3 needs signing keys: whoever may write to the bucket could replace results. "
            f"Make one with {MAKE_KEY} and name it in FARM_SIGNING_KEYS"
        )
    return _open_unsigned(settings)


def _open_unsigned(settings: Settings) -> Store:
    if settings.store_url.startswith("file://"):
        return DiskStore(Path(settings.store_url.removeprefix("file://")), read_only=settings.read_only)
    bucket, _, prefix = settings.store_url.removeprefix("s3://").partition("/")
    s3 = S3Store(
        bucket,
        prefix.rstrip("/"),
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        read_only=settings.read_only,
    )
    if not settings.cache_bytes:
        return s3
    return TieredStore(CacheFolder(node_cache_folder(settings), settings.cache_bytes), s3, read_only=settings.read_only)
