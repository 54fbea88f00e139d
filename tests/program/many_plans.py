"""Carry out many plans drawn by chance, and show each that fails, made as small as it still does.

python -m tests.program.many_plans --count 10000 --seed 0

"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
import traceback
import warnings
from dataclasses import fields, replace

# What was measured on the machine decides nothing, as in the tests.
os.environ["SINGANET_ROUTES"] = "off"

import numpy as np

from singanet.errors import SingaNetError
from singanet.optimizer.chain import with_reduction

from .drawn_nets import Plan, built, optimizer_of
from .plans import Run, drawn
from .ranked_plans import REDUCERS, Setting, drawn_setting, on_ranks


class Short(Run):
    """A run whose actions are many."""

    between = 2


def failure(drawn):
    """Carry out a plan or a `Setting`. Returns how it failed, or an empty text."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            on_ranks(drawn) if isinstance(drawn, Setting) else Short(drawn).run()
    except Exception:  # noqa: BLE001 - any error is one
        return traceback.format_exc()
    return ""


def refusal(drawn):
    """Why the parts that were drawn do not go together, if so."""
    plan = drawn.plan if isinstance(drawn, Setting) else drawn
    try:
        built(plan)
        optimizer = optimizer_of(plan.optimizer)
        if isinstance(drawn, Setting):
            with_reduction(optimizer, REDUCERS[drawn.reducer])
    except SingaNetError as error:
        return str(error)
    return ""


def kind_of(text):
    """The last frame and the error, by which failures are told apart."""
    frame, _, error = text.rpartition("\n  File ")[2].partition("\n")
    error = next((line for line in error.splitlines() if not line.startswith("  ")), "")
    return f"{frame.rpartition('/')[2]}: {error[:60]}"


def smaller(plan):
    """Yield plans or settings with one thing less than ``plan``."""
    if isinstance(plan, Setting):
        yield from (replace(plan, plan=less) for less in smaller(plan.plan))
        if plan.ranks > 2:
            yield replace(plan, ranks=2, records=(0, 1))
        return
    for name in ("actions", "nodes"):
        given = getattr(plan, name)
        for size in {len(given) // 2, 1} - {0}:
            for at in range(0, len(given), size):
                yield replace(plan, **{name: given[:at] + given[at + size :]})
    plain = Plan(plan.values, metric="none")
    for field in fields(plan):
        if field.name not in ("values", "actions", "nodes"):
            usual = getattr(plain, field.name)
            if getattr(plan, field.name) != usual:
                yield replace(plan, **{field.name: usual})


def smallest(plan, text, tries=60):
    """Return the smallest plan found that fails with the same error, and its text."""
    wanted = kind_of(text)
    left = [tries]

    def found():
        for less in smaller(plan):
            left[0] -= 1
            if left[0] < 0:
                return None
            told = failure(less)
            if told and kind_of(told) == wanted:
                return less, told
        return None

    while (better := found()) is not None:
        plan, text = better
    return plan, text


def say(line):
    """Print a line at once: a run takes hours."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments=None):
    """Carry out the plans that the command line asks for; the status of the process."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.program.many_plans")
    parser.add_argument("--count", type=int, default=10_000, help="the number of plans")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first plan")
    parser.add_argument("--actions", type=int, default=20, help="the most actions of a plan")
    parser.add_argument("--ranks", action="store_true", help="plans of two to four ranks")
    given = parser.parse_args(arguments)
    making = drawn_setting if given.ranks else drawn
    refused, failed, begun = 0, {}, time.time()
    # Collections by plans are of their own objects.
    gc.freeze()
    for number in range(given.seed, given.seed + given.count):
        plan = making(random.Random(number), given.actions, given.actions)
        if refusal(plan):
            refused += 1
        elif text := failure(plan):
            failed.setdefault(kind_of(text), []).append(number)
            if len(failed[kind_of(text)]) == 1:
                plan, text = smallest(plan, text)
                say(f"plan {number}: {plan}\n{text}")
        if (done := number - given.seed + 1) % 100 == 0 or done == given.count:
            wrong = sum(map(len, failed.values()))
            line = f"{done} plans, {refused} of them no net, {wrong} failed"
            say(f"{line}, {time.time() - begun:.0f} s")
    for line, numbers in failed.items():
        say(f"{len(numbers)} x {line}: plans {numbers}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
