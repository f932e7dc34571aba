"""`verify.json`: when the archive was last verified, how, and what that found.

    {"runs": [{"depth": "checksums", "finished_ms": ..., ...}, ...]}         the last of each depth

`strandline archive verify` writes it after a check of the whole archive; the broker tells its age.
It is a note and nothing depends on it: any writer replaces it, and one that cannot be read is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from strandline.storage.errors import CorruptFile, ObjectNotFound, UnsupportedFormat
from strandline.storage.model import TimestampMs
from strandline.storage.remote.keys import VERIFY_KEY
from strandline.storage.remote.manifest.json_document import (
    Json,
    decode_document,
    encode_document,
)
from strandline.storage.remote.object_store.interface import ObjectStore, ReadsArchive

FORMAT_NAME = "strandline-verify"
FORMAT_VERSIONS = range(1, 2)
# How segments are looked at, from the quickest to the most thorough: the names of `Depth`.
DEPTHS = ("sizes", "checksums", "everything")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """One check of a whole archive."""

    depth: str
    finished_ms: TimestampMs
    finding_count: int
    segment_count: int
    size_bytes: int


def load_verifications(store: ReadsArchive) -> Mapping[str, Verification]:
    """Returns the last check of each depth. Raises TierError if the store fails."""
    try:
        content = store.get(VERIFY_KEY)
        fields = decode_document(content, FORMAT_NAME, FORMAT_VERSIONS, VERIFY_KEY)
        runs = (
            Verification(
                depth=run.text("depth"),
                finished_ms=run.count("finished_ms"),
                finding_count=run.count("finding_count"),
                segment_count=run.count("segment_count"),
                size_bytes=run.count("size_bytes"),
            )
            for run in fields.objects("runs")
        )
        return {run.depth: run for run in runs if run.depth in DEPTHS}
    except (ObjectNotFound, CorruptFile, UnsupportedFormat):
        return {}


def note_verification(store: ObjectStore, done: Verification) -> None:
    """Remembers a check of the whole archive. Raises TierError."""
    assert done.depth in DEPTHS, done
    runs = {**load_verifications(store), done.depth: done}
    fields: dict[str, Json] = {"runs": [asdict(run) for run in runs.values()]}
    store.put(VERIFY_KEY, encode_document(FORMAT_NAME, FORMAT_VERSIONS.start, fields))
