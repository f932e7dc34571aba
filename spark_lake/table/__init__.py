"""Tables of a topic's archive: plan, rows, files, commits; see docs/tables.md."""
