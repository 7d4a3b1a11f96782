"""Prefect flows: train (parent), segment (on the pools), retrain, watch, recover, notify, verify_resume."""
