"""Delta tables through deltalake: files, commits; the log is the catalog."""
