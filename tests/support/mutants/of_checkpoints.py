"""Mutants of checkpoints: their format, saving, loading, retention and pruning."""

from __future__ import annotations

from tests.support.mutants.mutant import Mutants

_ADOPTION = "tests/checkpoints/test_adoption.py"
_RETENTION = "tests/checkpoints/test_retention.py"
_LYING = "tests/security/test_lying_checkpoints.py"
_FAST = "tests/checkpoints/test_fast_folder.py"
_ORDER = "tests/checkpoints/saving/test_order_of_writes.py"

MUTANTS = (
    Mutants(
        "segue/checkpoints/loading/adoption.py",
        (_ADOPTION,),
        (
            (
                "    return manifest if there == list(range(count)) else None",
                "    return manifest",
            ),
            ("    if history.damage or history.broken_resumes:", "    if history.broken_resumes:"),
            ("    if history.damage or history.broken_resumes:", "    if history.damage:"),
            ("        if step <= newest_committed:", "        if step < newest_committed:"),
            ("if since <= attempt.claim.epoch < epoch and is_sound:", "if since <= attempt.claim.epoch < epoch:"),
            ("len({part.partition_hash for part in found}) > 1:", "False:"),
        ),
    ),
    Mutants(
        "segue/checkpoints/pruning.py",
        (_ORDER, "tests/checkpoints/test_pruning.py"),
        (
            ("            runlog.append(build, epoch=self._epoch)", "            pass"),
            (" - names_in_use(history, without=slots))", ")"),
            ("        if history.damage:\n            return", "        if False:\n            return"),
            ("if epoch is not None and epoch < self._epoch}", "}"),
            (
                "            self._delete(runlog.run_id, (unkept | self._left)",
                "            self._delete(runlog.run_id, unkept",
            ),
        ),
    ),
    Mutants(
        "segue/checkpoints/retention.py",
        (_RETENTION,),
        (
            ("for checkpoint in usable[-keep:]}", "for checkpoint in usable[:keep]}"),
            ("    if verified_parents:", "    if False:"),
            ("        kept.add(verified_parents[-1].slot)", "        kept.add(verified_parents[0].slot)"),
            ('    sign = 1 if best == "min" else -1', "    sign = 1"),
            ("(sign * metric, -c.ref.slot, c)", "(sign * metric, c.ref.slot, c)"),
            ("    return frozenset(independent[-1:])", "    return frozenset()"),
            (
                "    kept |= {checkpoint.ref.slot for checkpoint in checkpoints if checkpoint.quarantined is not None}",
                "    pass",
            ),
            ("if c.ref.slot not in kept and not c.is_pruned)", "if c.ref.slot not in kept)"),
        ),
    ),
    Mutants(
        "segue/checkpoints/saving/committer.py",
        (_ORDER,),
        (
            ("                if is_repeated:\n", "                if False:\n"),
            ("            self._put_curve(job)\n            is_signed", "            is_signed"),
            ("        if self._written is None or self._written[0] is not job:", "        if True:"),
            ("        if job.step not in self._commits:", "        if True:"),
            ("            job.metric.wait()", "            pass"),
            ("                if self._stopped.wait(pause):", "                if not self._stopped.wait(pause):"),
            ("written.saves_since_full + 1 < self._full_every", "True"),
            ("        self._curve.clear()", "        pass"),
        ),
    ),
    Mutants(
        "segue/checkpoints/saving/write.py",
        (_ORDER,),
        (
            (
                '        tiers[-1].put(f"{save.run_id}/{keys.prepared_name(*where)}", prepared.encode())',
                '        tiers[0].put(f"{save.run_id}/{keys.prepared_name(*where)}", prepared.encode())',
            ),
            ("    if save.facts:", "    if False:"),
            ("base.saves_since_full + 1 if base is not None and same else 0", "0"),
        ),
    ),
    Mutants(
        "segue/checkpoints/loading/read.py",
        (
            "tests/checkpoints/test_limits.py",
            "tests/checkpoints/test_copies.py",
            _FAST,
            "tests/checkpoints/test_incremental.py",
        ),
        (
            ("    if count != len(chunk) or found != expected:", "    if count != len(chunk):"),
            ("        if found_bytes == shard.size_bytes:", "        if True:"),
            ("        if placed.spec != (dtype, shape):", "        if False:"),
            ("    if found.keys() != expected.keys():", "    if False:"),
            ("if homes.get(name) is shard and name not in unread}", "if name not in unread}"),
        ),
    ),
    Mutants(
        "segue/checkpoints/loading/read.py",
        ("tests/security/test_signed_runs.py",),
        (("        if signed != sha256:", "        if False:"),),
    ),
    Mutants(
        "segue/checkpoints/format/index.py",
        (_LYING,),
        (
            ("                refuse_deep(skeleton)", "                pass"),
            ("        with untrusted(key):", "        if True:"),
        ),
    ),
    Mutants(
        "segue/checkpoints/format/index.py",
        (_LYING,),
        (
            ("    except (SegueError, MemoryError, OSError):", "    except (SegueError, OSError):"),
            ("    for _ in range(3 * MOST_LEVELS + 1):", "    for _ in range(MOST_LEVELS):"),
        ),
    ),
    Mutants(
        "segue/checkpoints/format/state_tree.py",
        ("tests/checkpoints/test_state_tree.py", _LYING),
        (
            ("    if level == MOST_LEVELS:", "    if False:"),
            ("    while path in tensors:", "    while False:"),
            (
                'if math.isfinite(value) else {f"{_TAG}float": repr(float(value))}',
                'if True else {f"{_TAG}float": repr(float(value))}',
            ),
        ),
    ),
    Mutants(
        "segue/checkpoints/format/layout.py",
        ("tests/checkpoints/test_layout.py",),
        (
            ("        if start != end:", "        if start < end:"),
            ("    if end != total_bytes:", "    if end > total_bytes:"),
            ("    if stop - start != size_bytes:", "    if False:"),
            ("    if len(found) != len(pairs):", "    if False:"),
        ),
    ),
    Mutants(
        "segue/checkpoints/format/digests.py",
        ("tests/checkpoints/test_digests.py", "tests/checkpoints/test_state_tree.py"),
        (
            (
                '        hashers[owner].update(f"{name}:{dtype}{list(shape)}{digest}".encode())',
                '        hashers[owner].update(f"{name}:{dtype}{digest}".encode())',
            ),
            (
                "    longest_first = sorted(components, key=len, reverse=True)",
                "    longest_first = sorted(components, key=len)",
            ),
            ("sorted(items, key=repr)", "items"),
        ),
    ),
)
