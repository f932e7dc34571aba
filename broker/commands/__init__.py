"""Commands for log folders and archives, which need no broker."""
