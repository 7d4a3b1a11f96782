"""Scheduled verification of resumes: two runs of one workload, one of them disturbed, and a history of the outcomes."""
