"""Copying segments to the archive: inspection, upload, verification."""
