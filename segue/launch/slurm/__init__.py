"""Runs trainers on Slurm. A trainer is a job, which the segment submits to a partition and watches."""
