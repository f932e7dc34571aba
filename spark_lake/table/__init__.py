"""Tables of a topic's archive: plan, rows, files, commits; see docs/how-to/tables.md."""
