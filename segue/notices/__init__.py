"""Notices of a preemption: sources leave them on a board, and the training loop reads the board at its safe points."""
