"""The remote tier: objects, manifests and cold reads."""
