"""The check of a window of data before anything is bought."""
