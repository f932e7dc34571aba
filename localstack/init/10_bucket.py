"""Creates the bucket that the broker archives into; runs after every start of LocalStack.

The container runs it as a `ready.d` hook, `up-host.sh` runs it by hand. A bucket that exists
already is fine. The lifecycle rule throws away multipart uploads that nobody finished: the broker
aborts its own, the rule catches those of a broker that never came back.
"""

import os

import boto3
from botocore.exceptions import ClientError

ENDPOINT = os.environ.get("S3_ENDPOINT", "http://127.0.0.1:4566")
BUCKET = os.environ.get("BUCKET", "strandline")
ABANDONED_UPLOAD_DAYS = 1


def main() -> None:
    s3 = boto3.client(
        "s3",
        endpoint_url=ENDPOINT,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    try:
        s3.create_bucket(Bucket=BUCKET)
    except ClientError as error:
        if error.response["Error"]["Code"] not in (
            "BucketAlreadyOwnedByYou",
            "BucketAlreadyExists",
        ):
            raise
    s3.put_bucket_lifecycle_configuration(
        Bucket=BUCKET,
        LifecycleConfiguration={
            "Rules": [
                {
                    "ID": "abandoned-uploads",
                    "Status": "Enabled",
                    "Filter": {"Prefix": ""},
                    "AbortIncompleteMultipartUpload": {
                        "DaysAfterInitiation": ABANDONED_UPLOAD_DAYS
                    },
                }
            ]
        },
    )
    print(f"bucket {BUCKET} is ready at {ENDPOINT}")  # noqa: T201 (a script talks)


main()
