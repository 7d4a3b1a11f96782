"""Judges the machines of a run by what attempts showed of them."""
