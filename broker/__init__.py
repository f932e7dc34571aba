"""The broker: the wire, the cluster's metadata, request handlers and the command line."""
