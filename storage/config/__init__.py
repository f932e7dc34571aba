"""Topic and log properties: their names, bounds, defaults, and the parsed configuration."""
