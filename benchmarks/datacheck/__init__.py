"""How long the check of a window of data takes, and how much memory."""
