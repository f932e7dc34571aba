"""Group coordinators: classic groups, KIP-848 groups, and committed offsets."""
