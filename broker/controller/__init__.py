"""Decisions of a controller on its brokers: registrations, sessions, elections, log folders."""
