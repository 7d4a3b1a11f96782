"""Versions of a model: files, evaluation in a process with torch, and loading."""
