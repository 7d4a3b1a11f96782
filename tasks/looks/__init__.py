"""Looks of recovery: at which stores, when, what each one does, and who watches that they go on to end."""
