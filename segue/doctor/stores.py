"""Checks the store: rights, put-if-absent, consistency, latency, and rules that remove objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

from segue.clock import Clock
from segue.doctor.check import Item, Result, fail, ok, skipped, warn
from segue.doctor.clock_skew import clock_skew
from segue.doctor.races import race
from segue.doctor.scratch import Scratch
from segue.doctor.subject import Subject
from segue.errors import MissingObjectError
from segue.spec import LivenessSpec
from segue.stores import LocalStore, Store, StoreReadError, StoreWriteError
from segue.stores.base import WRONG_CLOCK, Examinable, HasRules, put_new
from segue.stores.mounts import mount_of
from segue.units import duration

_PUTS = 5
_RIGHTS = {
    "write": "s3:PutObject on S3, storage.objects.create and delete on Google Cloud",
    "read": "s3:GetObject on S3, storage.objects.get on Google Cloud",
    "list": "s3:ListBucket on S3, storage.objects.list on Google Cloud",
    "delete": "s3:DeleteObject on S3, storage.objects.delete on Google Cloud",
}
"""The permission that each right needs at each provider.

On Google Cloud, the right to overwrite an object includes the right to delete it. On Azure, one role has all rights.
"""
_KEPT = "set [store] url to a store that keeps its objects."


def items(subject: Subject) -> list[Item]:
    """Return the checks of the subject's store."""
    reachable, written = ("store.reachable",), ("store.write", "store.read")

    def on_store(name: str, look: Callable[[Store, Scratch], Result], *needs: str, limit_seconds: float = 60.0) -> Item:
        return Item(f"store.{name}", lambda: look(subject.opened, subject.scratch), needs, limit_seconds)

    return [
        Item("store.reachable", partial(reachability_of, subject)),
        on_store("write", right_to_write, *reachable),
        on_store("read", right_to_read, *reachable),
        on_store("list", right_to_list, *reachable),
        on_store("delete", right_to_delete, *reachable),
        on_store("read-after-write", read_after_write, *written),
        on_store(
            "put-if-absent", lambda store, scratch: race(store, subject.store, scratch), *written, limit_seconds=180
        ),
        on_store("latency", partial(latency, liveness=subject.liveness, clock=subject.clock), *written),
        on_store("clock", partial(clock_skew, clock=subject.clock), *written),
        Item("store.retention", lambda: retention(subject.opened), reachable),
    ]


def reachability_of(subject: Subject) -> Result:
    """Check that the store can be reached. Without a run spec, do not create the folder of the default store."""
    if subject.problem is not None:
        return skipped(subject.why_no_spec)
    store = subject.opened
    if subject.spec is None and isinstance(store, LocalStore) and not store.root.exists():
        return skipped(f"no run spec is given, and the default store {subject.store.url} does not exist yet")
    return reachability(store)


def reachability(store: Store) -> Result:
    """Check that the store answers. If the store does not answer, raise the store's error."""
    if isinstance(store, Examinable):
        store.reach()
    else:
        store.check()
    return ok(f"{store.url} answers")


def right_to_write(store: Store, scratch: Scratch) -> Result:
    key = scratch.new_key()
    try:
        created = _is_new(store, key)
        store.put(key, b"again")
    except StoreWriteError as error:
        return _no_right("written", error.why, right="write")
    finally:
        scratch.forget(store, key)
    return (
        ok("objects can be written")
        if created
        else fail("the store reported that a new object already exists", fix=_KEPT)
    )


def _is_new(store: Store, key: str) -> bool:
    """Whether a put creates this object. If the answer is lost and the object cannot be read, return True."""
    try:
        return put_new(store, key, key.encode())
    except StoreReadError:
        return True
    except MissingObjectError:
        return False


def right_to_read(store: Store, scratch: Scratch) -> Result:
    try:
        store.get(scratch.new_key())
    except MissingObjectError:
        pass  # Reading is permitted, and the object does not exist.
    except StoreReadError as error:
        return _no_right("read", error.why, right="read")
    return ok("objects can be read")


def right_to_list(store: Store, scratch: Scratch) -> Result:
    try:
        store.list_objects(scratch.prefix)
        runs = store.folders()
    except StoreReadError as error:
        return _no_right("listed", error.why, right="list")
    except MissingObjectError:
        return _no_right("listed", "the store does not show its folders", right="list")
    return ok(f"objects can be listed; runs there: {len(runs)}")


def right_to_delete(store: Store, scratch: Scratch) -> Result:
    key = scratch.new_key()
    try:
        store.put(key, b"x")
    except StoreWriteError:
        return skipped("no object can be written, so none can be deleted")
    try:
        store.delete([key])
        store.get(key)
    except MissingObjectError:
        return ok("objects can be deleted")
    except StoreWriteError as error:
        why = f"{error.why}; the objects of these checks stay below {scratch.prefix}"
        return _no_right("deleted", why, right="delete")
    except StoreReadError:
        return skipped("without the right to read, the doctor cannot check that a deleted object is gone")
    return fail("a deleted object still exists", fix=_KEPT)


def read_after_write(store: Store, scratch: Scratch) -> Result:
    """Check that a reader sees writes and overwrites immediately.

    The readers of heartbeats and recalls need this guarantee.
    """
    key = scratch.new_key()
    try:
        store.put(key, b"first")
        seen = [store.get(key)]
        store.put(key, b"second")
        seen.append(store.get(key))
        is_listed = key in [item.key for item in store.list_objects(scratch.prefix)]
    except MissingObjectError:
        seen, is_listed = [], False
    finally:
        scratch.forget(store, key)
    if seen == [b"first", b"second"] and is_listed:
        if isinstance(store, LocalStore) and mount_of(store.root).hides_new_objects:
            return warn(
                "the folder is on NFS, and this machine may see a new object of another machine half a minute late, so "
                "an attempt that is alive could be declared lost",
                fix="mount it with the option lookupcache=none on every machine.",
            )
        return ok("reads and listings show a write immediately")
    return fail(
        "a read or a listing does not show a recent write, so an attempt that is still alive could be declared lost",
        fix="use a store with strong read-after-write consistency, without a cache in between.",
    )


def latency(store: Store, scratch: Scratch, *, liveness: LivenessSpec, clock: Clock) -> Result:
    """Compare the heartbeat interval with the time for the write of a heartbeat (a small durable put)."""
    key, seconds = scratch.new_key(), []
    try:
        for _ in range(_PUTS):
            began = clock.monotonic()
            store.put(key, b"x" * 1024)
            seconds.append(clock.monotonic() - began)
    finally:
        scratch.forget(store, key)
    return judge_latency(median(seconds), liveness)


def judge_latency(seconds: float, liveness: LivenessSpec) -> Result:
    """Judge whether heartbeats arrive in time if a put takes this many seconds. The function is pure."""
    took = f"a small put takes {duration(seconds)} (median of {_PUTS})"
    if seconds > liveness.heartbeat_timeout_seconds / 3:
        return fail(
            f"{took}, but an attempt is declared lost after {duration(liveness.heartbeat_timeout_seconds)} without a "
            "heartbeat",
            fix="use a nearer store, or set a higher value for liveness.heartbeat_timeout_seconds.",
        )
    if seconds > liveness.heartbeat_seconds / 2:
        return warn(
            f"{took}, but a heartbeat is written every {duration(liveness.heartbeat_seconds)}",
            fix="raise liveness.heartbeat_seconds and liveness.heartbeat_timeout_seconds, or use a nearer store.",
        )
    return ok(took)


def retention(store: Store) -> Result:
    """Check that the store has no rule that removes objects, because only segue may remove objects."""
    if not isinstance(store, HasRules):
        return skipped("this kind of store does not show its rules")
    try:
        cause = store.removed_by()
    except StoreReadError as error:
        return skipped(
            f"the rules of the bucket cannot be read ({error.why}); make sure that no rule deletes or archives objects"
        )
    if cause is None:
        is_folder = isinstance(store, LocalStore)
        return ok("the folder is on a disk" if is_folder else "no rule of the bucket deletes or archives objects")
    if isinstance(store, LocalStore):
        return warn(cause, fix="name a folder on a disk with [store] url.")
    return fail(
        f"{cause}, but the log and older checkpoints are needed until the end of the run",
        fix="leave this prefix out of the rule, or use a prefix or bucket of its own.",
    )


def _no_right(what: str, why: str, *, right: str) -> Result:
    fix = f"give the right to {right} at this place ({_RIGHTS[right]}; Storage Blob Data Contributor on Azure)."
    return fail(f"objects cannot be {what}: {why}", fix="set this machine's clock." if why == WRONG_CLOCK else fix)
