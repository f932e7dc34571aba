"""Cold reads: chunk cache, prefetch, and the reader behind cold fetches."""
