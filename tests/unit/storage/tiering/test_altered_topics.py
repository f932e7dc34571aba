"""A property of a topic is altered while something waits for it: its limit counts from before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.unit.storage.local.compaction import CONFIG as COMPACTED
from tests.unit.storage.local.compaction import CompactedLog
from tests.unit.storage.tiering.harness import CONFIG, Rig, asynchronous

HOUR_MS = 3_600_000
WAITED_MS = 60_000
SOME_MS = 100


@dataclass(frozen=True)
class Wait:
    """Nothing has happened with `before`; `after` says that it is due, by the same clock."""

    before: Mapping[str, object]
    after: Mapping[str, object]
    has_happened: Callable[[Rig], bool]


def freed(rig: Rig) -> bool:
    return rig.log.local_start_offset > 0


def deleted(rig: Rig) -> bool:
    return rig.log.log_start_offset > 0


def copied(rig: Rig) -> bool:
    return bool(rig.archived)


def uploaded(rig: Rig) -> bool:
    return rig.manifest is not None and bool(rig.manifest.tail)


def closed_the_open_one(rig: Rig) -> bool:
    return rig.log.local.active_segment.size_bytes == 0


KEPT = {"retention_ms": -1, "local_retention_ms": -1}
WAITS = {
    "retention.ms": Wait(
        {"retention_ms": HOUR_MS, "local_retention_ms": -2}, {"retention_ms": WAITED_MS}, deleted
    ),
    "retention.bytes": Wait(KEPT, {"retention_bytes": 1}, deleted),
    "local.retention.ms": Wait(KEPT, {"local_retention_ms": WAITED_MS}, freed),
    "local.retention.bytes": Wait(KEPT, {"local_retention_bytes": 1}, freed),
    "remote.copy.lag.ms": Wait(
        {**KEPT, "remote_copy_lag_ms": HOUR_MS, "remote_copy_lag_bytes": -1},
        {"remote_copy_lag_ms": WAITED_MS},
        copied,
    ),
    "remote.copy.lag.bytes": Wait(
        {**KEPT, "remote_copy_lag_ms": HOUR_MS, "remote_copy_lag_bytes": 1 << 30},
        {"remote_copy_lag_bytes": 1},
        copied,
    ),
    "remote.log.copy.disable": Wait(
        {**KEPT, "remote_log_copy_disable": True}, {"remote_log_copy_disable": False}, copied
    ),
    "strandline.remote.active.segment.upload.ms": Wait(
        {**KEPT, "strandline_remote_active_segment_upload_ms": HOUR_MS},
        {"strandline_remote_active_segment_upload_ms": WAITED_MS},
        uploaded,
    ),
    "segment.ms": Wait(
        {**KEPT, "segment_ms": HOUR_MS}, {"segment_ms": WAITED_MS}, closed_the_open_one
    ),
    "segment.jitter.ms": Wait(
        {**KEPT, "segment_ms": 2 * WAITED_MS}, {"segment_jitter_ms": WAITED_MS}, closed_the_open_one
    ),
}


@pytest.mark.parametrize("key", WAITS)
@asynchronous
async def test_a_wait_goes_by_the_limit_of_the_moment(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of the jitter.
    monkeypatch.setattr("strandline.storage.entropy.fraction", lambda: 1.0)
    wait = WAITS[key]
    async with Rig(tmp_path, config=replace(CONFIG, **wait.before)) as rig:  # type: ignore[arg-type]
        rig.produce_segments(2)
        rig.produce()
        # The last record of a batch is some milliseconds later than the first one.
        rig.pass_ms(SOME_MS)
        await rig.settle()
        rig.pass_ms(WAITED_MS)
        await rig.settle()
        assert not wait.has_happened(rig)
        rig.configure(**wait.after)
        await rig.settle()
        assert wait.has_happened(rig)


LAGGING = replace(COMPACTED, min_compaction_lag_ms=HOUR_MS)
CLEAN_ENOUGH = replace(COMPACTED, min_cleanable_dirty_ratio=1.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            replace(COMPACTED, cleanup_policy=("delete",)), COMPACTED, id="cleanup.policy"
        ),
        pytest.param(
            LAGGING, replace(LAGGING, min_compaction_lag_ms=0), id="min.compaction.lag.ms"
        ),
        pytest.param(
            CLEAN_ENOUGH,
            replace(CLEAN_ENOUGH, max_compaction_lag_ms=WAITED_MS),
            id="max.compaction.lag.ms",
        ),
        pytest.param(CLEAN_ENOUGH, COMPACTED, id="min.cleanable.dirty.ratio"),
    ],
)
def test_a_log_that_waits_for_the_cleaner_goes_by_the_properties_of_the_moment(
    tmp_path: Path, before: object, after: object
) -> None:
    log = CompactedLog(tmp_path, config=before)  # type: ignore[arg-type]
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.seal()
    log.clock.advance_ms(2 * WAITED_MS)
    assert log.clean() == 0
    log.log.update_config(after)  # type: ignore[arg-type]
    assert log.clean() == 1
