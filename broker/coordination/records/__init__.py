"""Records of groups and offsets, as `__consumer_offsets` holds them."""
