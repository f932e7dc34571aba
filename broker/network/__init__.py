"""Client connections: sockets and framing."""
