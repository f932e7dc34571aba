"""Group APIs of both protocols."""
