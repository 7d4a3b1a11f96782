"""Checks a window of data before any capacity is bought."""
