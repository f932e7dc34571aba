"""Decides what each tier may forget, and carries it out."""
