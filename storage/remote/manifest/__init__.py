"""The archive's own description: manifests, their pages, and documents of topics and cluster."""
