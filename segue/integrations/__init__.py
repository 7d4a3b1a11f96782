"""Integrations of training frameworks and trackers; only the module of a framework imports the framework."""
