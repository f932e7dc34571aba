"""A restore while the broker that it replaces still writes: one of the two goes on."""

from __future__ import annotations

import pytest

from tests.support.broker import eventually
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import EARLIEST, LATEST, end_of, make_batches, with_epoch
from tests.system.tiers.restoring import mirrors_topic, run_restore
from tests.system.tiers.tiered_broker import FREE_LOCALLY, SEGMENT_BYTES, TIERED, WAIT_S, Archive

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "beside"
BEFORE = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
MEANWHILE = make_batches(base_offset=end_of(BEFORE), size_bytes=2 * SEGMENT_BYTES)
TOO_LATE = make_batches(base_offset=end_of(MEANWHILE), size_bytes=2 * SEGMENT_BYTES)
OWNED = "another broker owns the archive"
NOT_EMPTY = "is not empty"


def test_what_the_old_broker_archived_after_the_restore_is_served_and_nothing_later_gets_in(
    make_broker: MakeBroker, archive: Archive
) -> None:
    old, new = make_broker(name="old"), make_broker(name="new")
    old.start()
    with old.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BEFORE)
        restored_end = old.wait_until_archived(client)
        eventually(lambda: mirrors_topic(archive, TOPIC), timeout_s=WAIT_S)
        assert run_restore(new).returncode == 0
        again = run_restore(new)
        assert again.returncode == 1
        assert NOT_EMPTY in again.stderr
        client.produce(MEANWHILE)
        border = old.wait_until_archived(client)
        assert border > restored_end
        archive.wait_until_tidy()
        new.start()
        with new.client(TOPIC) as reader:
            eventually(lambda: reader.list_offset(LATEST).offset == border, timeout_s=WAIT_S)
            sent = [batch for batch in BEFORE + MEANWHILE if end_of([batch]) <= border]
            more = [
                with_epoch(batch, 1)
                for batch in make_batches(base_offset=border, size_bytes=2 * SEGMENT_BYTES, seed=5)
            ]
            reader.produce(more)
            # The old one takes records, and keeps what it cannot archive.
            client.produce(TOO_LATE)
            eventually(lambda: old.warnings(OWNED), timeout_s=WAIT_S)
            new.wait_until_archived(reader)
            new.wait_until_freed(reader)
            assert reader.offset_at(EARLIEST) == 0
            assert reader.read(0, end_of(more)) == sent + more
            late = [batch for batch in MEANWHILE + TOO_LATE if end_of([batch]) > border]
            assert client.read(border, end_of(TOO_LATE)) == late
    assert archive.findings() == []
