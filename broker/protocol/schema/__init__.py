"""The schema language, and the tables of APIs and error codes."""
