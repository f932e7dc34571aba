"""The state of the coordinators in the bucket, and what a restored broker makes of it."""
