"""Checks of the store: rights, put-if-absent, order of reads and writes, latency, clock, and what removes objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

from segue.clock import Clock
from segue.doctor.check import Item, Result, fail, ok, skipped, warn
from segue.doctor.races import race
from segue.doctor.scratch import Scratch
from segue.doctor.subject import Subject
from segue.errors import MissingObjectError
from segue.spec import LivenessSpec
from segue.stores import LocalStore, Store, StoreReadError, StoreWriteError
from segue.stores.base import WRONG_CLOCK, Examinable, HasRules, put_new
from segue.units import duration

_PUTS = 5
_SKEW_WARN_SECONDS, _SKEW_FAIL_SECONDS = 5.0, 60.0
"""S3 itself refuses a request that is 15 minutes off. AWS announces an interruption two minutes ahead, by its clock."""
_WHOLE_SECONDS = 1.0
"""The seconds by which a store that counts whole seconds may seem to be off."""
_RIGHTS = {
    "write": "s3:PutObject on S3, storage.objects.create and delete on Google Cloud",
    "read": "s3:GetObject on S3, storage.objects.get on Google Cloud",
    "list": "s3:ListBucket on S3, storage.objects.list on Google Cloud",
    "delete": "s3:DeleteObject on S3, storage.objects.delete on Google Cloud",
}
"""What gives each right; to replace an object is to delete one on Google Cloud. On Azure one role gives all."""
_KEPT = "name a place that keeps what is stored, with [store] url."


def items(subject: Subject) -> list[Item]:
    """The checks of the subject's store."""
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
    """Whether the subject's store is there. Without a run spec no folder is created."""
    if subject.problem is not None:
        return skipped(subject.why_no_spec)
    store = subject.opened
    if subject.spec is None and isinstance(store, LocalStore) and not store.root.exists():
        return skipped(f"no run spec is given, and the default store {subject.store.url} is not there yet")
    return reachability(store)


def reachability(store: Store) -> Result:
    """Whether the store is there; raises its own error if it is not."""
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
    return ok("objects can be put") if created else fail("a new object was taken for an old one", fix=_KEPT)


def _is_new(store: Store, key: str) -> bool:
    """Whether a put creates this object. Without the right to read, a lost answer cannot be told from a wrong one."""
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
        pass  # It may be read, and is not there.
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
        return _no_right("listed", "it does not show its folders", right="list")
    return ok(f"objects can be listed; runs there: {len(runs)}")


def right_to_delete(store: Store, scratch: Scratch) -> Result:
    key = scratch.new_key()
    try:
        store.put(key, b"x")
    except StoreWriteError:
        return skipped("nothing can be written that could be deleted")
    try:
        store.delete([key])
        store.get(key)
    except MissingObjectError:
        return ok("objects can be deleted")
    except StoreWriteError as error:
        why = f"{error.why}; what these checks have written stays below {scratch.prefix}"
        return _no_right("deleted", why, right="delete")
    except StoreReadError:
        return skipped("without the right to read it is not known whether an object that was deleted is gone")
    return fail("an object that was deleted is still there", fix=_KEPT)


def read_after_write(store: Store, scratch: Scratch) -> Result:
    """Whether a reader sees what was just written and replaced: heartbeats and recalls are read this way."""
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
        return ok("what was written is read and listed at once")
    return fail(
        "an object that was just written is not read or listed as written, so an attempt that lives could be "
        "declared lost",
        fix="use a store with strong read-after-write consistency, without a cache in between.",
    )


def latency(store: Store, scratch: Scratch, *, liveness: LivenessSpec, clock: Clock) -> Result:
    """Compare the seconds of a small durable put with the heartbeat interval: each heartbeat is such a put."""
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
    """Whether heartbeats arrive in time at this latency. Pure."""
    took = f"a small put takes {duration(seconds)} (median of {_PUTS})"
    if seconds > liveness.heartbeat_timeout_seconds / 3:
        return fail(
            f"{took}, and an attempt without a heartbeat for {duration(liveness.heartbeat_timeout_seconds)} is "
            "declared lost",
            fix="use a nearer store, or raise liveness.heartbeat_timeout_seconds.",
        )
    if seconds > liveness.heartbeat_seconds / 2:
        return warn(
            f"{took}, and a heartbeat is put every {duration(liveness.heartbeat_seconds)}",
            fix="raise liveness.heartbeat_seconds and liveness.heartbeat_timeout_seconds, or use a nearer store.",
        )
    return ok(took)


def clock_skew(store: Store, scratch: Scratch, *, clock: Clock) -> Result:
    """The difference between this machine's clock and the store's."""
    if not isinstance(store, Examinable):
        return skipped("this kind of store does not show when an object was written")
    key = scratch.new_key()
    try:
        before = clock.now()
        store.put(key, b"x")
        after = clock.now()
        at = store.modified_at(key)
    finally:
        scratch.forget(store, key)
    early, late = (before - at).total_seconds() - _WHOLE_SECONDS, (at - after).total_seconds()
    return judge_skew(max(early, late, 0.0), is_ahead=early > 0)


def judge_skew(seconds: float, *, is_ahead: bool) -> Result:
    """Whether a difference of this size between the clocks does harm. Pure.

    An attempt compares the time at which AWS or Azure take the machine with its own clock, and S3 refuses requests that
    are far off. The parent goes by the clock of its Prefect server, and falls back on its own; whether an attempt lives
    is judged by heartbeat counters, not by clocks.
    """
    if seconds < _SKEW_WARN_SECONDS:
        return ok(f"this machine's clock and the store's differ by less than {duration(_SKEW_WARN_SECONDS)}")
    reason = f"this machine's clock is {duration(seconds)} {'ahead of' if is_ahead else 'behind'} the store's"
    fix = "synchronize the clock of this machine (chrony, systemd-timesyncd)."
    if seconds < _SKEW_FAIL_SECONDS:
        return warn(f"{reason}; times in notices of AWS and Azure are off by that", fix=fix)
    return fail(f"{reason}; a notice of AWS or Azure would be understood too late", fix=fix)


def retention(store: Store) -> Result:
    """Whether anything other than segue removes objects."""
    if not isinstance(store, HasRules):
        return skipped("this kind of store does not show its rules")
    try:
        cause = store.removed_by()
    except StoreReadError as error:
        return skipped(f"the rules of the bucket cannot be read ({error.why}); no rule may delete or archive objects")
    if cause is None:
        is_folder = isinstance(store, LocalStore)
        return ok("the folder is on a disk" if is_folder else "no rule of the bucket deletes or archives objects")
    if isinstance(store, LocalStore):
        return warn(cause, fix="name a folder on a disk with [store] url.")
    return fail(
        f"{cause}, and the log and older checkpoints are needed as long as the run lasts",
        fix="leave this prefix out of the rule, or use a prefix or bucket of its own.",
    )


def _no_right(what: str, why: str, *, right: str) -> Result:
    fix = f"give the right to {right} at this place ({_RIGHTS[right]}; Storage Blob Data Contributor on Azure)."
    return fail(f"objects cannot be {what}: {why}", fix="set this machine's clock." if why == WRONG_CLOCK else fix)
