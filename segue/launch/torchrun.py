"""Runs torchrun without termination signals: `python -m segue.launch.torchrun` with torchrun's arguments.

Platforms send signals to every process of a machine. After a SIGTERM, torchrun would end its ranks within half a
minute, even while they save. With this program, the ranks themselves act on the notice, and torchrun ends after the
ranks.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from segue.launch.rendezvous import LaunchFolder
from segue.process import Parent

_FOR_RANKS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_POLL_SECONDS = 0.5


def main() -> None:
    """Run torchrun, and ignore signals. The ranks also ignore signals until they install their own handlers."""
    parent, folder = Parent(), LaunchFolder(Path(sys.argv[-1]))
    for number in _FOR_RANKS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=thaw_orphans, args=(folder, parent), name="segue-orphans", daemon=True).start()
    from torch.distributed.run import main as torchrun

    torchrun(["--signals-to-handle", "SIGQUIT", *sys.argv[1:]])


def thaw_orphans(folder: LaunchFolder, parent: Parent) -> None:
    """Resume suspended ranks after the parent has ended. Suspended ranks would not detect that they are orphans."""
    pause = threading.Event()
    while parent.is_alive():
        pause.wait(_POLL_SECONDS)
    folder.signal(signal.SIGCONT)


if __name__ == "__main__":
    main()
