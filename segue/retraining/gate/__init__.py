"""The check of a window of data before any capacity is bought."""
