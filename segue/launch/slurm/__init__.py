"""Slurm: a trainer is a job that the segment submits to a partition, and watches."""
