"""The list of changed manifests, by which replicas follow an archive."""
