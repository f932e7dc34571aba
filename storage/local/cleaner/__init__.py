"""The log cleaner: compaction of local segments in a child process."""
