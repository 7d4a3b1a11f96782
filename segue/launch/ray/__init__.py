"""Runs trainers on Ray: a placement group of actors, which a driver process starts and watches."""
