"""The log of one partition: append, read, roll, truncate, recover."""
