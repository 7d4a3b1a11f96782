"""Returns the session of a segment, of a bare script, or of a script that saves to a folder and resumes.

The module imports the training code only for a local session, so that a bare script does not load it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, overload

from segue.errors import SessionError
from segue.hosting import Host, host_here, require_training_here
from segue.sessions import Session


@overload
def session(local: None = None) -> Session: ...
@overload
def session(local: Path | str) -> LocalSession: ...
def session(local: Path | str | None = None) -> Session | LocalSession:
    """Return the session of this training script. The session is a context manager.

    In a segment, segue restores, saves and verifies the tracked objects. Outside a segment, and without `local`, the
    session does not change the script. With `local`, the script saves to this folder and resumes from it:

        with segue.session(local="runs/first") as run:

    The folder is a store with one run, whose run id is `local`. Ctrl-C and SIGTERM first save and then end the script.
    A second Ctrl-C ends the script at once. In a segment, the session ignores the folder.

    Raises:
        SessionError: the block cannot be entered, because another process trains in the folder.
        BrokenResumeError: the resume does not continue the run in the folder. The loop raises this error.
    """
    return Session(host_here()) if local is None else LocalSession(Path(local))


class LocalSession:
    """A session that saves to its own folder while its `with` block runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._training: AbstractContextManager[Host] | None = None

    def __enter__(self) -> Session:
        host = host_here()
        if host is None:
            require_training_here()
        self._training = nullcontext(host) if host is not None else _training_in(self._folder)
        return Session(self._training.__enter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._training is not None
        self._training.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # Tools that inspect objects, such as notebooks, ask for such names.
        what = f"session(local=...).{name} was used outside of its block."
        raise SessionError(what=what, fix='write `with segue.session(local="folder") as run:` around the training.')


def _training_in(folder: Path) -> AbstractContextManager[Host]:
    from segue.local_attempt import training_in

    return training_in(folder)
