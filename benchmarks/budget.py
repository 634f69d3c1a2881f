"""Whether `active=K` gives K factors: on the pairs that a fit holds out, and on test pairs.

Held-out pairs are like those that were learned from, where groups allow it; test pairs of these
sets are always from other sources (images, animals, records). Run it with

    python benchmarks/budget.py [--sets deblur,rgb,digits] [--active 5,40,200] [--minutes 1]
"""

from __future__ import annotations

import argparse
import math

from vspair import fit
from vspair.anchored import AnchoredModel
from vspair.datasets.own import SETS
from vspair.errors import VspairError
from vspair.runs import commit, machine
from vspair.training.doubt import undecided_share
from vspair.verdict import Verdict, found_omega


def main() -> None:
    """Print for each set and K how many factors answers have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default="deblur,rgb,digits", help="Of the study `own`.")
    parser.add_argument("--active", default="5,40,200", help="The numbers to ask for.")
    parser.add_argument("--minutes", type=float, default=1.0, help="Of each training.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{machine()}, commit {commit()}, {options.minutes:g} minutes each, seed {options.seed}")
    print(f"{'set':<10}{'asked':>7}{'held out':>10}{'test':>9}{'undecided':>11}", flush=True)
    for name in options.sets.split(","):
        train, test, groups = SETS[name].load(100 + options.seed)
        entries = math.prod(train.shapes[0])
        for asked in (int(k) for k in options.active.split(",")):
            if asked > entries:
                continue  # more than x has degrees of freedom
            how = {"minutes": options.minutes, "groups": groups, "seed": options.seed}
            try:
                model = fit(train.x, train.y, active=asked, device="cpu", progress=False, **how)
            except VspairError as error:
                print(f"{name:<10}{asked:>7}  {error}", flush=True)
                continue
            assert isinstance(model, AnchoredModel)
            assert isinstance(model.verdict, Verdict)
            omega = found_omega(model, test.y, None)
            present = float((omega > 0.5).sum(1).double().mean())
            undecided = f"{100 * undecided_share(omega):.2g} %"
            row = f"{name:<10}{asked:>7}{model.verdict.active:>10.4g}{present:>9.4g}"
            print(f"{row}{undecided:>11}", flush=True)


if __name__ == "__main__":
    main()
