"""The doctor checks everything that a run needs, before any capacity is bought."""
