"""Authentication: SASL mechanisms and stored credentials. Pure; the time is a parameter."""
