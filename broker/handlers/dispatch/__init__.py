"""From a request's header to its handler."""
