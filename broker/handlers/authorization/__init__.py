"""What clients may ask for: the checks of each API, put in front of its handler."""
