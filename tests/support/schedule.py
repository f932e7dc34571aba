"""Which worker of a parallel run gets which file, and when: `--dist loadfile`, with the long first.

xdist gives a whole file to a worker, since a file's tests share brokers and buckets, and begins
with the files that hold most tests. Those that hold few and take minutes would come at the end,
where two workers have nothing left to do but to wait for the third. Here the files of LONGEST come
first; all files of Spark go to one worker, because each worker that has one starts a JVM, loads its
libraries and warms it up.

An entry that is in a wrong place costs seconds, and nothing else.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SPARK = "tests/spark"
# The longest first, in the order of a run with `--durations=0`.
LONGEST = (
    SPARK,
    "tests/crash/test_crash_points.py",
    "tests/crash/test_archive_compaction_crashes.py",
    "tests/test_demo.py",
    "tests/tiers/test_tiers_fault_matrix.py",
    "tests/tiers/test_tiers_restart.py",
    "tests/tiers/test_tiers_verify.py",
    "tests/unit/tiering/test_compacted_history.py",
    "tests/crash/test_kill_while_working.py",
    "tests/clients/test_client_suites.py",
    "tests/soak/test_soak.py",
    "tests/tiers/test_tiers_quotas.py",
    "tests/tiers/test_tiers_rewritten.py",
    "tests/unit/lake/test_lake_histories.py",
    "tests/tiers/test_tiers_twins.py",
    "tests/contract/test_s3_faults.py",
    "tests/tiers/test_tiers_restore.py",
    "tests/contract/test_object_store_contract.py",
    "tests/integration/test_huge_requests.py",
    "tests/tiers/test_tiers_lake_changes.py",
    "tests/integration/test_groups_clients.py",
    "tests/tiers/test_tiers_outage.py",
    "tests/tiers/test_tiers_read_only.py",
    "tests/tiers/test_tiers_older_image.py",
    "tests/tiers/test_tiers_lake_open_segment.py",
    "tests/unit/lake/test_lake_random_damage.py",
    "tests/unit/lake/test_lake_questions.py",
    "tests/unit/lake/test_lake_notebook.py",
    "tests/tiers/test_tiers_tools.py",
    "tests/tiers/test_tiers_lake.py",
    "tests/test_packaging.py",
    "tests/integration/test_move_log_dirs.py",
    "tests/tiers/test_tiers_topic_changes.py",
    "tests/tiers/test_tiers_retention.py",
    "tests/tiers/test_tiers_damage.py",
    "tests/integration/test_restart_crash.py",
    "tests/unit/test_stop.py",
    "tests/unit/tiering/test_tiering_planted_faults.py",
    "tests/unit/tiering/test_tiering_state_machine.py",
    "tests/tiers/test_tiers_disable.py",
    "tests/integration/test_groups_restart.py",
    "tests/tiers/test_tiers_claim.py",
    "tests/tiers/test_tiers_topic_deletion.py",
    "tests/integration/test_bad_input_fuzz.py",
    "tests/integration/test_groups_storm.py",
)
_PLACES = {scope: place for place, scope in enumerate(LONGEST)}


def scope_of(nodeid: str) -> str:
    """What goes to one worker together with this test."""
    path = nodeid.split("::", 1)[0]
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
