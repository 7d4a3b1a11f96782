"""Mutants of the stores."""

from __future__ import annotations

from tests.support.mutants.mutant import Mutants

_POWER_CUTS = "tests/stores/test_power_cuts.py"
_LOCAL = "tests/stores/test_local.py"

MUTANTS = (
    Mutants(
        "segue/stores/local.py",
        (_POWER_CUTS,),
        (
            ("            os.fsync(file.fileno())", "            pass"),
            (
                "                staged.unlink()\n            _sync_folder(path.parent)",
                "                staged.unlink()\n            pass",
            ),
            (
                "            if durable:\n                _sync_folder(path.parent)",
                "            if durable:\n                pass",
            ),
            ("        if durable:\n            _sync_folder(folder.parent)", "        if durable:\n            pass"),
            ("(not durable or folder in self._synced)", "True"),
            (
                "                staged.unlink()\n                _sync_folder(self.root)",
                "                staged.unlink()",
            ),
            (", str(folder)) from None\n    _sync_folder(folder.parent)", ", str(folder)) from None"),
            (
                "_write_small(staged, data, durable=durable), durable=durable)",
                "_write_small(staged, data, durable=True), durable=durable)",
            ),
        ),
    ),
    Mutants("segue/stores/direct_io.py", (_POWER_CUTS,), (("        os.fsync(descriptor)", "        pass"),)),
    Mutants(
        "segue/stores/local.py",
        (_LOCAL,),
        (
            (
                "            except FileExistsError:\n                return False",
                "            except FileExistsError:\n                return True",
            ),
            ("        if marker != self._known:", "        if False:"),
            ("        if not found:\n            self._require_marker()", "        if not found:\n            pass"),
            ("                if tries == _TRIES:", "                if tries == 1:"),
            ("(after is None or key > after)", "(after is None or key >= after)"),
            (
                "            except BaseException:\n                staged.unlink(missing_ok=True)",
                "            except BaseException:\n                pass",
            ),
        ),
    ),
    Mutants(
        "segue/stores/base.py",
        (
            "tests/security/test_lying_checkpoints.py::test_a_key_that_no_store_can_have_is_malformed_and_not_unreadable",
        ),
        (
            ("len(name.encode()) <= _MOST_KEY_BYTES and ", ""),
            ("all(len(part.encode()) <= _MOST_PART_BYTES for part in parts)", "True"),
        ),
    ),
    Mutants(
        "segue/stores/retry.py",
        ("tests/stores/test_retry.py",),
        (
            (
                "            if clock.monotonic() + pause > give_up_at:",
                "            if clock.monotonic() > give_up_at:",
            ),
            (
                "            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)",
                "            pause = min(pause, _LONGEST_PAUSE_SECONDS)",
            ),
            ("            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)", "            pause = 2 * pause"),
        ),
    ),
    Mutants(
        "segue/stores/parallel.py",
        ("tests/stores/test_parallel.py",),
        (
            ("ahead_bytes + item.size_bytes > _AHEAD_BYTES", "False"),
            ("            while asked:\n", "            while len(asked) > 1:\n"),
            ("        return store.get_range(key, 0, most_bytes)", "        return store.get(key)"),
        ),
    ),
)
