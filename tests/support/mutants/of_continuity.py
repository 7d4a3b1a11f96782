"""Mutants of the verdict about a resume, and of what it compares."""

from __future__ import annotations

from tests.support.mutants.mutant import Mutants

_VERDICT = "tests/continuity/test_verdict.py"

MUTANTS = (
    Mutants(
        "segue/continuity/verdict.py",
        (_VERDICT,),
        (
            ("    elif findings or not pairs:", "    elif findings:"),
            (
                "        kind = VerdictKind.EQUIVALENT if environment_changes or noise.floats else VerdictKind.EXACT",
                "        kind = VerdictKind.EXACT",
            ),
            ("    if before_steps or (is_other", "    if (is_other"),
            ("if row.step in replayed]", "]"),
            (
                "for row in sorted(witness, key=lambda row: row.step)",
                "for row in sorted(witness, key=lambda row: -row.step)",
            ),
            ("        if name not in committed.components and name not in NOT_STATE and", "        if False and"),
            (
                "*(() if _is_lost(of_rows) else (METRIC,)))",
                "METRIC)",
            ),
            ("        rows_compared=len(pairs),", "        rows_compared=len(witness),"),
        ),
    ),
    Mutants(
        "segue/continuity/agreement.py",
        (_VERDICT,),
        (
            ("    if before == after or (math.isnan(before) and math.isnan(after)):", "    if before == after:"),
            ("    if exact:\n        return False", "    if exact:\n        pass"),
            ("rel_tol=tolerance, abs_tol=FLOORS[channel])", "rel_tol=tolerance)"),
            ("    if before.digest == after.digest:\n        return True", "    if False:\n        return True"),
            ("    if before.plain != after.plain or (exact and not noise):", "    if before.plain != after.plain:"),
            ("    if before.plain != after.plain or (exact and not noise):", "    if exact and not noise:"),
            ("    if channel in EXACT_CHANNELS or not", "    if not"),
        ),
    ),
    Mutants(
        "segue/continuity/witness.py",
        (_VERDICT,),
        (
            (
                "        return len(rows) < self._width and step == start + len(rows) + 1",
                "        return len(rows) < self._width",
            ),
            (
                "        full = [step for step, rows in self._windows.items() if len(rows) >= self._width]",
                "        full = [step for step, rows in self._windows.items() if len(rows) >= self._width - 1]",
            ),
            ("        self._windows.clear()", "        pass"),
        ),
    ),
    Mutants(
        "segue/continuity/differences.py",
        ("tests/continuity/noise/test_differences.py",),
        (
            ("    return abs(before - after) / max(abs(before), abs(after))", "    return abs(before - after)"),
            ("        return math.inf\n", "        return None\n"),
            (
                "    return content_difference([one, other]) is None and not differences(one, other)",
                "    return not differences(one, other)",
            ),
        ),
    ),
    Mutants(
        "segue/continuity/fingerprints.py",
        ("tests/continuity/test_fingerprints.py",),
        (
            ('        hasher.update(f"{tensor.dtype}torch.strided{tuple(tensor.shape)}".encode())', "        pass"),
            ("            hasher.update(str(key).encode())", "            pass"),
            ('        hasher.update(f"{content.dtype}{content.shape}".encode())', "        pass"),
        ),
    ),
)
