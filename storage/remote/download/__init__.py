"""Downloads of chunks: requests, the child process that makes them, and their memory."""
