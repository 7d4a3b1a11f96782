"""Notices of a preemption. Sources leave notices on a board, and the training loop reads the board at its safe
points."""
