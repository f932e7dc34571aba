"""Threads and futures: resizable pools, ordered maps, tasks that end together."""
