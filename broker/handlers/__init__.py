"""One file per API family: decode, ask, encode."""
