from tests.stores.conftest import aws_keys, bucket, moto_url

__all__ = ["aws_keys", "bucket", "moto_url"]
