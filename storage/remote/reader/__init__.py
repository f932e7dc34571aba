"""Cold reads: chunk cache, read-ahead, and the reader that fetches answer from."""
