"""One step of a recipe: its work, and how its numbers come to the host."""
