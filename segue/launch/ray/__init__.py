"""Trainers on Ray. A trainer is a placement group of actors on a Ray cluster. A driver process starts and watches the
actors."""
