"""Makes the handlers, the rare ones when they are first asked for."""
