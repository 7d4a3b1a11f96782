"""Runs all programs of the axis, several processes at a time: `python -m benchmarks.continuity.carried.measure`."""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.continuity.carried import epochs, holders, namespaces, plain_values, single_values, sound
from benchmarks.continuity.carried.kind import Kind
from benchmarks.continuity.carried.trial import Outcome, outcome_of

_LIMIT_SECONDS = 300.0
KINDS: tuple[Kind, ...] = (
    *plain_values.KINDS,
    *single_values.KINDS,
    *holders.KINDS,
    *namespaces.KINDS,
    *epochs.KINDS,
)
SOUND: tuple[Kind, ...] = (*sound.KINDS, *namespaces.SOUND)


def measure(kinds: Sequence[Kind], *, resumes: int, jobs: int) -> list[Outcome]:
    """Run each program in a separate process."""
    made = []
    with ThreadPoolExecutor(jobs) as threads:
        for outcome in threads.map(partial(_in_process, resumes=resumes), kinds):
            made.append(outcome)
            print(json.dumps(vars(outcome)), file=sys.stderr, flush=True)
    return made


def figures(lost: Sequence[Outcome], clean: Sequence[Outcome]) -> dict[str, Any]:
    """Shares of kinds, and the false alarms of the sound programs."""
    acting = [each for each in lost if not each.problem]
    count = max(len(acting), 1)
    alarms = [each for each in clean if each.commits or any(kind != "exact" for kind in each.verdicts)]
    return {
        "kinds": len(lost),
        "problems": {each.name: each.problem for each in (*lost, *clean) if each.problem},
        "changes_the_end": sum(each.is_lost for each in acting),
        "found_share": round(sum(each.is_found for each in acting) / count, 4),
        "named_share": round(sum(each.is_named for each in acting) / count, 4),
        "named_first_share": round(sum(each.is_named_first for each in acting) / count, 4),
        "named_at_first_commit_share": round(sum(each.is_named_at_commit for each in acting) / count, 4),
        "exact_without_a_word": sum("exact" in each.verdicts for each in acting),
        "fix_enough_share": round(sum(bool(each.is_fix_enough) for each in acting) / count, 4),
        "sound_programs": len(clean),
        "sound_resumes": sum(len(each.verdicts) for each in clean),
        "false_alarms": len(alarms),
        "alarms": {each.name: [*each.sentences, *each.commits] for each in alarms},
    }


def _in_process(kind: Kind, resumes: int) -> Outcome:
    context = mp.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_be_trial, args=(kind, resumes, sender), daemon=True)
    process.start()
    sender.close()
    try:
        with suppress(EOFError):
            if receiver.poll(_LIMIT_SECONDS):
                found: Outcome = receiver.recv()
                return found
        return Outcome(kind.name, (), (), False, False, False, False, False, problem="its process came to no end")
    finally:
        process.kill()
        process.join()
        receiver.close()


def _be_trial(kind: Kind, resumes: int, sender: Connection) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    sender.send(outcome_of(kind, resumes=resumes))


def main() -> None:
    """Print the figures, and with --all every outcome, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default="", help="part of the names of the programs to run")
    parser.add_argument("--resumes", type=int, default=2, help="resumes of each program")
    parser.add_argument("--sound-resumes", type=int, default=18, help="resumes of each sound program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "segue.trainer.attempt"])
    chosen = [kind for kind in KINDS if options.kinds in kind.name]
    clean = [kind for kind in SOUND if options.kinds in kind.name]
    lost = measure(chosen, resumes=options.resumes, jobs=options.jobs)
    sound_ones = measure(clean, resumes=options.sound_resumes, jobs=options.jobs)
    report = figures(lost, sound_ones)
    if options.all:
        report["outcomes"] = [vars(each) for each in (*lost, *sound_ones)]
    json.dump(report, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
