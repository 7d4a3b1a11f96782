"""Recovery of runs whose parent is dead: looks at stores, their schedule, and the watch that they continue."""
