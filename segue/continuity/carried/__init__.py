"""The values that a training loop carries from one iteration to the next: found in its source, without running it."""
