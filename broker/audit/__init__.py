"""The record of who logged in, was denied something, changed something, read and wrote."""
