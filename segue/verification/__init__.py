"""Scheduled verification of resumes: an undisturbed and a disturbed run of one workload, and a history of outcomes."""
