"""The archive of one partition: its manifest, expiration, local restart and divergence."""
