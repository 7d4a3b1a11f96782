"""Integrations of training frameworks and trackers. Only the module of a framework imports the framework."""
