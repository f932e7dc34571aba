"""Iceberg tables through pyiceberg: catalogs, schemas, files, commits."""
