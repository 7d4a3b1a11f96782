"""Finds the values that a training loop carries from one iteration to the next, from the loop's source code alone."""
