"""What a training loop carries from one iteration to the next: found in the source, without running any of it."""
