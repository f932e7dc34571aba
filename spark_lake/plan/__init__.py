"""Planning of a query: predicate, selected segments, splits."""
