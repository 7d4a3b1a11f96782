"""Recovers runs whose parent is dead: checks of stores, their schedule, and the watch over this schedule."""
