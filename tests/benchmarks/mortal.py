"""Something to measure that can be brought down; apart, because what lives in a worker is imported there."""

from __future__ import annotations

import os
import subprocess
import sys


class Mortal:
    """Lives in a worker and can be brought down."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(["sleep", "600"], start_new_session=True)

    def child_pid(self) -> int:
        return self.child.pid

    def refuse(self) -> None:
        raise ValueError("out of file descriptors")

    def die(self) -> None:
        sys.stderr.write("killed by a bug\n")
        sys.stderr.flush()
        os._exit(3)

    def close(self) -> None:
        """Forgets its child."""
