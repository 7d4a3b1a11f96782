"""Process pools: everything on this machine. What the demo and `segue run` start when no server is configured."""
