"""Recovery of runs whose parent is dead. It has the checks of stores, the schedule of these checks, and the watch over
this schedule."""
