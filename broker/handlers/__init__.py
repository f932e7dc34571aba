"""Request handlers, one file per API family: decode, ask, encode."""
