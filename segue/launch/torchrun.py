"""torchrun that ignores termination signals: `python -m segue.launch.torchrun` with torchrun's arguments.

Platforms signal every process of a machine. torchrun would end its ranks half a minute after a SIGTERM, even while they
save. The ranks act on the notice themselves, and torchrun ends when they have.
"""

from __future__ import annotations

import signal
import sys

_FOR_RANKS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Run torchrun. Ranks inherit the ignored signals until they install handlers of their own."""
    for number in _FOR_RANKS:
        signal.signal(number, signal.SIG_IGN)
    from torch.distributed.run import main as torchrun

    torchrun(["--signals-to-handle", "SIGQUIT", *sys.argv[1:]])


if __name__ == "__main__":
    main()
