"""The coordinators' runtime: shards, journal, expiry, and the archive of groups."""
