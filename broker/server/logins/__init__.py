"""How clients log in: a handler for each connection, and what its mechanisms are fed from."""
