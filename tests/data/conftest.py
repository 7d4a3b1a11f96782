from tests.stores.conftest import aws_keys, azurite_url, bucket, gcs, gcs_url, moto_url

__all__ = ["aws_keys", "azurite_url", "bucket", "gcs", "gcs_url", "moto_url"]
