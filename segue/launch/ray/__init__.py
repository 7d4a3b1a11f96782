"""Ray: a trainer is a placement group of actors on a Ray cluster, which a driver process starts and watches."""
