"""The reader inside Spark's JVM, and how it is given a plan."""
