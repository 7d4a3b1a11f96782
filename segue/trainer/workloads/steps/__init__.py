"""One step of a recipe: its computation, and the transfer of its numbers to the host."""
