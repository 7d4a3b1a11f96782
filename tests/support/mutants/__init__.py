"""One-line changes of the code, each of which some test must notice: `python -m tests.support.mutants [WORD]`."""
