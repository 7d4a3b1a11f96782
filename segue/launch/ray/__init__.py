"""Ray: a trainer is a placement group of actors on a Ray cluster; a driver process starts and watches the actors."""
