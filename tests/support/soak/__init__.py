"""The soak tests in four quarters, of which CI runs one at each landing, in turn."""
