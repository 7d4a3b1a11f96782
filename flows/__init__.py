"""Prefect flows: train (the parent), segment (run by the pools), retrain (scheduled), verify_resume (the drill)."""
