"""The broker's configuration: keys, parsing, checks, and the values in force."""
