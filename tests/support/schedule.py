"""Schedules test files on parallel workers: `--dist loadfile`, with the longest first.

xdist gives a whole file to a worker, since a file's tests share brokers and buckets, and begins
with the files that hold most tests. Those that hold few and take minutes would come at the end,
where two workers have nothing left to do but to wait for the third. Here the files of LONGEST come
first; all files of Spark go to one worker, because each worker that has one starts a JVM, loads its
libraries and warms it up. Simulated worlds share nothing, and one file has hundreds of them: each
goes to the next worker that is free.

An entry that is in a wrong place costs seconds, and nothing else.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SPARK = "tests/spark"
SIMULATED = "tests/sim"
# The longest first, in the order of a run with `--durations=0`.
LONGEST = (
    SPARK,
    "tests/system/documents/test_commands.py",
    "tests/system/documents/test_journeys.py",
    "tests/test_demo.py",
    "tests/system/soak/test_soak.py",
    "tests/system/transactions/histories/test_random_transactions.py",
    "tests/system/transactions/test_restore.py",
    "tests/system/tiers/restore/test_deleted.py",
    "tests/system/tables/test_catalogs.py",
    "tests/system/tables/test_crashes.py",
    "tests/system/crash/test_crash_points.py",
    "tests/system/tiers/restore/test_verify.py",
    "tests/system/transactions/test_power_loss.py",
    "tests/system/transactions/test_tiers.py",
    "tests/unit/spark_lake/table/test_upkeep.py",
    "tests/unit/spark_lake/table/test_upsert.py",
    "tests/system/crash/test_archive_compaction_crashes.py",
    "tests/system/tiers/restore/test_restore.py",
    "tests/system/tiers/reading/test_fault_matrix.py",
    "tests/system/tiers/restore/test_restart.py",
    "tests/unit/storage/tiering/rewrite/test_compacted_history.py",
    "tests/system/transactions/test_crashes.py",
    "tests/system/crash/test_kill_while_working.py",
    "tests/system/cluster_faults/test_cluster_faults.py",
    "tests/system/cluster/test_consumer_bounces.py",
    "tests/system/cluster/test_transaction_bounces.py",
    "tests/system/transactions/test_clients.py",
    "tests/system/transactions/test_exactly_once.py",
    "tests/system/tiers/reading/test_quotas.py",
    "tests/system/tiers/archive/test_rewritten.py",
    "tests/unit/spark_lake/archive/test_histories.py",
    "tests/system/tiers/restore/test_twins.py",
    "tests/contract/test_s3_faults.py",
    "tests/contract/test_object_store_contract.py",
    "tests/system/wire/test_huge_requests.py",
    "tests/system/tiers/lake/test_changes.py",
    "tests/system/groups/test_clients.py",
    "tests/system/tiers/archive/test_outage.py",
    "tests/system/tiers/restore/test_read_only.py",
    "tests/system/tiers/archive/test_older_image.py",
    "tests/system/tiers/lake/test_open_segment.py",
    "tests/unit/spark_lake/query/test_random_damage.py",
    "tests/unit/spark_lake/query/test_questions.py",
    "tests/unit/spark_lake/test_notebook.py",
    "tests/system/tiers/restore/test_tools.py",
    "tests/system/tiers/lake/test_lake.py",
    "tests/test_packaging.py",
    "tests/system/admin/test_move_log_dirs.py",
    "tests/system/tiers/archive/test_topic_changes.py",
    "tests/system/tiers/archive/test_retention.py",
    "tests/system/tiers/restore/test_damage.py",
    "tests/system/restart/test_crash.py",
    "tests/unit/broker/server/test_stop.py",
    "tests/unit/storage/tiering/test_planted_faults.py",
    "tests/unit/storage/tiering/test_state_machine.py",
    "tests/system/tiers/archive/test_disable.py",
    "tests/system/groups/test_restart.py",
    "tests/system/tiers/archive/test_claim.py",
    "tests/system/tiers/archive/test_topic_deletion.py",
    "tests/system/wire/test_bad_input_fuzz.py",
    "tests/system/groups/test_storm.py",
)
_PLACES = {scope: place for place, scope in enumerate(LONGEST)}


def scope_of(nodeid: str) -> str:
    """What goes to one worker together with this test."""
    path = nodeid.split("::", 1)[0]
    if path.startswith(f"{SIMULATED}/"):
        return nodeid
    return SPARK if path.startswith(f"{SPARK}/") else path


class LongestFirst(LoadFileScheduling):
    """See above; the rest is xdist's."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        # Which takes the first of the queue; among the others xdist's order stays.
        longest = min(self.workqueue, key=lambda scope: _PLACES.get(scope, len(_PLACES)))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)
