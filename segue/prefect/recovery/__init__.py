"""Recovery of runs whose parent is dead: looks at stores, the schedule of looks, and the watch over this schedule."""
