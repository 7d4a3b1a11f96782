"""The time and the memory of the check of a window of data."""
