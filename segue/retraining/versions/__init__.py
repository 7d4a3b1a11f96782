"""Versions of a model: their files, their evaluation in a process with torch, and loading them."""
