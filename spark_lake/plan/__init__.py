"""From a query to splits of the archive."""
