"""Publishes, evaluates and loads the versions of a model. The evaluation runs in a process with torch."""
