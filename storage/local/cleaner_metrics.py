"""What the cleaner tells of itself; Kafka's names of the same figures in brackets."""

from __future__ import annotations

from strandline.storage.local.cleaning import CleaningStatistics
from strandline.storage.metrics import MetricRegistry


class CleanerMetrics:
    """Gauges are set with every look for work, counters grow with every cleaning."""

    def __init__(self, registry: MetricRegistry) -> None:
        self.last_look_seconds = registry.counter(
            "strandline_cleaner_last_run_timestamp_seconds",
            "When the cleaner last looked for work, as Unix time [time-since-last-run-ms].",
        )
        self.dirty_ratio_max = registry.counter(
            "strandline_cleaner_max_dirty_ratio",
            "Dirty ratio of the dirtiest compacted log, 0 to 1 [max-dirty-percent].",
        )
        self.uncleanable_partitions = registry.counter(
            "strandline_cleaner_uncleanable_partitions",
            "Logs that cannot be compacted until the next start [uncleanable-partitions-count].",
        )
        self.uncleanable_bytes = registry.counter(
            "strandline_cleaner_uncleanable_bytes",
            "Dirty bytes of those logs [uncleanable-bytes].",
        )
        self.delay_seconds_max = registry.counter(
            "strandline_cleaner_max_compaction_delay_seconds",
            "How long max.compaction.lag.ms has been over for the log that waits longest"
            " [max-compaction-delay-secs].",
        )
        self.key_share = registry.counter(
            "strandline_cleaner_dedupe_buffer_ratio",
            "How full the memory for keys became in the last cleaning, 0 to 1"
            " [max-buffer-utilization-percent].",
        )
        self.clean_seconds = registry.counter(
            "strandline_cleaner_last_clean_seconds",
            "How long the last cleaning took [max-clean-time-secs].",
        )
        self.cleanings = registry.counter(
            "strandline_cleaner_cleanings_total", "Logs cleaned, counted each time."
        )
        self.read_bytes = registry.counter(
            "strandline_cleaner_read_bytes_total", "Bytes of segments read by cleanings."
        )
        self.written_bytes = registry.counter(
            "strandline_cleaner_written_bytes_total",
            "Bytes of segments written by cleanings [cleaner-recopy-percent].",
        )

    def note_look(
        self,
        *,
        now_ms: int,
        dirty_ratio_max: float,
        uncleanable_count: int,
        uncleanable_bytes: int,
        delay_ms_max: int,
    ) -> None:
        """A worker looked for work."""
        self.last_look_seconds.value = now_ms / 1000
        self.dirty_ratio_max.value = dirty_ratio_max
        self.uncleanable_partitions.value = uncleanable_count
        self.uncleanable_bytes.value = uncleanable_bytes
        self.delay_seconds_max.value = delay_ms_max / 1000

    def note_cleaning(self, done: CleaningStatistics, *, elapsed_s: float) -> None:
        """A log was cleaned."""
        self.key_share.value = done.key_share
        self.clean_seconds.value = elapsed_s
        self.cleanings.add()
        self.read_bytes.add(done.indexed_bytes + done.bytes_read)
        self.written_bytes.add(done.bytes_written)
