"""The steps by which the archive of one partition is kept: copy, expire, merge, compact."""
