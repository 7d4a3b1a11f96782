"""Mutants of the run's log, its claims and its signatures."""

from __future__ import annotations

from tests.support.mutants.mutant import Mutants

_FENCING = "tests/runlog/test_fencing.py"
_IDENTITY = "tests/runlog/test_log_identity.py"
_LOG = "tests/runlog/test_log.py"
_ANSWERS = "tests/runlog/test_answers.py"
_HISTORY = "tests/runlog/test_history.py"
_PACKS = "tests/runlog/test_packs.py"
_ENTRIES = "tests/runlog/test_entries.py"
_SIGNED = "tests/security/test_signed_log.py"
_SIGNING = "tests/security/test_signing.py"

MUTANTS = (
    Mutants(
        "segue/runlog/log.py",
        (_ANSWERS, _LOG),
        (
            ("            if self.highest_epoch > epoch:", "            if self.highest_epoch > epoch + 1:"),
            ("            if at is not None and number != at:", "            if at is not None and number < at:"),
            (" or self.store.get(key) == data\n", "\n"),
            ("            if not self._holds(key, data):", "            if True:"),
            ("        if not is_ours:\n            self.refresh()", "        if False:\n            self.refresh()"),
            ("sent = self._unsure.setdefault(content, built)", "sent = built"),
        ),
    ),
    Mutants(
        "segue/runlog/log.py",
        (_FENCING, _IDENTITY, _ANSWERS),
        (
            ("            if unread:\n                raise", "            if False:\n                raise"),
            (
                "            if unread:\n                self._reader",
                "            if False:\n                self._reader",
            ),
            (
                "                self.refresh()\n                self._reader.require_same_log()",
                "                self.refresh()",
            ),
            (
                "            self.refresh()\n            self._reader.require_same_log()\n            unread",
                "            self.refresh()\n            unread",
            ),
            (
                "            if slot is None:\n                continue",
                "            if False:\n                continue",
            ),
            (', "log_id": log_id}', "}"),
        ),
    ),
    Mutants(
        "segue/runlog/reader.py",
        (_IDENTITY, _FENCING, _LOG),
        (
            ("        if number - end > _WIDEST_GAP_SLOTS:", "        if number > end:"),
            ("for number in missing if number < self._slots.end):", "for number in missing):"),
            ("entry_id_in(found) != slot.entry.entry_id:", "False:"),
            ("        is_sure = any(answers) or ", "        is_sure = all(answers) and "),
            ("        if self._slots.end > len(_FIRST) and ", "        if False and "),
            ("                self.require_same_log()  # Is it", "                pass  # Is it"),
            ("            self._read_new_damage_again()\n        return True", "        return True"),
        ),
    ),
    Mutants(
        "segue/runlog/reader.py",
        (_LOG, _IDENTITY, "tests/runlog/test_folding.py"),
        (
            ("        self.repairs += at < len(self._in_order)", "        self.repairs += 0"),
            (
                "        self._damage.pop(number, None)\n        self.highest_epoch",
                "        self.highest_epoch",
            ),
            ("        while self.end in self._foreign:", "        while False:"),
            ('        return named in ("", self.log_id)', "        return True"),
            (
                "        self.highest_epoch = max(self.highest_epoch, entry.epoch)",
                "        self.highest_epoch = entry.epoch",
            ),
            ("            self.add_damage(number, error.why)", "            pass"),
        ),
    ),
    Mutants(
        "segue/runlog/history.py",
        (_HISTORY, "tests/runlog/test_folding.py"),
        (
            ("        if entry.epoch < self._highest_epoch:", "        if entry.epoch <= self._highest_epoch:"),
            ("        if entry.epoch < self._highest_epoch:", "        if False:"),
            (
                "        self._highest_epoch = max(self._highest_epoch, entry.epoch)",
                "        self._highest_epoch = entry.epoch",
            ),
            ("        if 0 < entry.epoch < self._highest_epoch:", "        if False:"),
            ("        self._fresh_from = len(self._reports)", "        self._fresh_from = 0"),
        ),
    ),
    Mutants(
        "segue/runlog/folded_parts.py",
        (_HISTORY, "tests/runlog/test_folding.py"),
        (
            ("        if slot not in self._quarantined:", "        if False:"),
            ('            self.is_stopped = entry.action == "stopped"', "            pass"),
            (
                "            self.broken_resumes = (*self.broken_resumes, entry)",
                "            self.broken_resumes = (entry,)",
            ),
        ),
    ),
    Mutants(
        "segue/runlog/framing.py",
        (_ENTRIES,),
        (
            ("    if not is_intact(data):", "    if False:"),
            ('    return data[-1:] == b"}" and ', "    return "),
        ),
    ),
    Mutants(
        "segue/runlog/packs.py",
        (f"{_PACKS}::test_packs_of_a_state_that_was_undone_are_not_used_and_are_replaced",),
        (("                if data != records[max(records)]:", "                if data is None:"),),
    ),
    Mutants(
        "segue/trainer/claim.py",
        ("tests/runlog/test_claim.py", _FENCING),
        (
            ("runlog.highest_epoch + len(runlog.damage) + 1", "runlog.highest_epoch + 1"),
            ("runlog.highest_epoch + len(runlog.damage) + 1", "runlog.highest_epoch + len(runlog.damage)"),
            ("    if history.report_of(*key) is not None:", "    if False:"),
            ("    if history.attempt_of(*key) is not None:", "    if False:"),
            ("    if history.stop is not None:", "    if False:"),
            ('    if plan.log_id not in ("", runlog.log_id):', "    if False:"),
            ("(decided[-1].segment, decided[-1].attempt) != key:", "decided[-1].segment != key[0]:"),
        ),
    ),
)

SIGNATURES = (
    Mutants(
        "segue/runlog/signatures.py",
        (_SIGNED,),
        (
            ("        if expected != sha256:", "        if False:"),
            ("            if known != found.previous_sha256:", "            if False:"),
            ("            self._followed[before] = slot, found.previous_sha256", "            pass"),
            ("        if found is None and slot == 0:", "        if False:"),
            (
                "(found.run_id, found.slot, found.log_id) != (self._run_id, slot,",
                "(self._run_id, found.slot, found.log_id) != (self._run_id, slot,",
            ),
            (
                "(found.run_id, found.slot, found.log_id) != (self._run_id, slot,",
                "(found.run_id, slot, found.log_id) != (self._run_id, slot,",
            ),
            ("self._log_id or found.log_id):", "found.log_id):"),
            (
                "            if found is not None:\n                raise SigningKeyNeededError",
                "            if False:\n                raise SigningKeyNeededError",
            ),
            ('update={"signature": hashlib.sha256(entry).hexdigest()}', 'update={"signature": ""}'),
        ),
    ),
    Mutants(
        "segue/signing.py",
        (_SIGNING,),
        (
            ("        if not hmac.compare_digest(found.encode(), self._tag(data).encode()):", "        if False:"),
            ("    if (found_scheme, found_id) != (scheme, key_id):", "    if found_scheme != scheme:"),
            ("    if len(content) < _LEAST_SECRET_BYTES:", "    if not content:"),
            ("    if not REFERENCE.fullmatch(reference):", "    if False:"),
        ),
    ),
)
