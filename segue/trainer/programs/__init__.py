"""Training of a program: the objects that its script tracks, and the numbers that the script reports."""
