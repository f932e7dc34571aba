"""Inspection of log folders from the command line: dump and verify."""
