"""Language models of transformers at 16 layers: every causal architecture that builds from a small configuration.

    python benchmarks/language_models.py [--only 'llama*' ...] [--list] [--draws 16] [--out docs/results]

A model is planned by ``autoinit``; its weights are drawn from the plan for every pass, and tokens are independent and
equally likely. The figure of a node is |log2(predicted / measured)| of its second moment; views are left out. Rows are
kept in a journal as they come: models that are in it are not judged again, unless ``--again`` asks for that.
"""

from __future__ import annotations

from typing import Any

from judging import Case, arguments, rows_of
from nets import languages

GOAL, HARDER_GOAL = 0.25, 0.5


def main() -> None:
    """Run the benchmark and write its results."""
    options = arguments(__doc__, "language_models").parse_args()
    if options.list:
        print("\n".join(languages.names()))
        return

    def make(name: str) -> Case:
        return Case(languages.build(name), languages.tokens)

    rows = rows_of({name: {"bound": GOAL} for name in languages.names()}, make, options)


if __name__ == "__main__":
    main()
