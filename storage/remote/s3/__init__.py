"""The object store over S3: the only place that uses boto3."""
