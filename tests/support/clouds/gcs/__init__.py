"""A Google Cloud Storage on loopback: what obstore, google-auth and gcsfs ask of it, with its answers to what fails."""

from tests.support.clouds.gcs.server import FakeGcs

__all__ = ["FakeGcs"]
