"""Plain values of the group coordinators, and small rules of groups."""
