"""Trainers on Slurm. A trainer is a job. The segment submits the job to a partition, and watches the job."""
