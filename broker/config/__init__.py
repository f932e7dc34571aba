"""The broker's configuration: keys, parsing, checks, and what runs now."""
