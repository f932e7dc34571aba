"""Retention: decides what each tier may delete, and deletes it."""
