"""One step of a recipe: what it does, and how its numbers come to the host."""
