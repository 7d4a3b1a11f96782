"""Slurm: a trainer is a job; the segment submits the job to a partition and watches it."""
