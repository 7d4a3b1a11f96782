"""Tests of trainers that are Slurm jobs."""
