"""The metadata log, the image derived from it, and the controller's decisions."""
