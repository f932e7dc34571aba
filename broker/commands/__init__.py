"""Commands that work on folders and archives without a broker."""
