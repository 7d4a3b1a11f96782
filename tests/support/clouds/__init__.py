"""Servers of the clouds for tests, on loopback."""
