"""Workers of pools: `segue worker` and `segue serve`."""
