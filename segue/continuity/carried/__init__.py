"""What a training loop carries from one iteration to the next: found in the source, and nothing of it is run."""
