"""Prefect flows: train (the parent), segment (what a pool runs), retrain (scheduled), verify_resume (the drill)."""
