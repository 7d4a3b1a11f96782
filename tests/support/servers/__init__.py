"""Servers of Debian packages, for one test each."""
