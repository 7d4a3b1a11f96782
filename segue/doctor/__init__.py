"""The doctor: checks of everything that a run needs, before any capacity is bought."""
