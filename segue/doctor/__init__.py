"""The doctor: checks of everything that a run will need, before anything is bought."""
