"""Finding the values that a training loop carries from one iteration to the next, from its source code alone."""
