"""Processes, CPU scheduling, timers and socket timeouts of the operating system."""
