"""A broker's seat in a cluster: its controllers, its registration, and the metadata they give."""
