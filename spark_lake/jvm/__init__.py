"""The reader inside Spark's JVM: engine choice, jar and plan format."""
