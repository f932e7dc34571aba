"""Record batches and records: layout, reading, writing, conversion of old formats."""
