"""Groups and transactions."""
