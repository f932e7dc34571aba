"""The archive compared with its manifests: listing, scrub, orphans, repair, usage, restore."""
