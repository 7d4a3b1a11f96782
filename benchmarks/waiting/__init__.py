"""The costs of a waiting parent: processor time, requests to the store, and reading of its log."""
