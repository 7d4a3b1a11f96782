"""Notices of a preemption. Sources write notices to a board, and the training loop reads the board at safe points."""
