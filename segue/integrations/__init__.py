"""Integrations of training frameworks and trackers. Each framework is imported only by its own module."""
