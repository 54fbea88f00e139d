"""The arrays of a training checkpoint, as sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from singanet.checkpoint.entry import Source, sources_of
from singanet.optimizer.sources import state_sources
from singanet.params.files import param_sources
from singanet.training.course import Course, Stateful
from singanet.training.files import session_entry
from singanet.training.measures import Measures
from singanet.training.metric_state import save_metrics
from singanet.training.progress import FORMAT
from singanet.training.ranks import World
from singanet.types import Array

WHERE = "session.state"


def training_sources(
    course: Course, ranks: World, first_rows: dict[str, int] | None = None
) -> list[Source]:
    """Parameters, optimizer, generator, position in the data, history, metrics, callbacks.

    Keys are ``net/<parameter>``, ``optimizer/<parameter>/<slot>``, ``metric/...``,
    ``precision/...``, ``callback/<place>.<class>/...`` and ``session``, which is JSON as bytes
    (uint8). It resumes to the bit. Of several ranks it is rank 0's, with position and generator of
    each, and what else is each rank's own: see `own_entries`. There ``net/...`` is the running
    state of all, ``local/...`` the rank's; nothing on the others. With ``first_rows`` each rank
    gives what it is to write itself, parts of arrays with the rows that they begin with, by name.
    """
    own = partial(own_sources, course, ranks, first_rows)
    measures = course.measures.copied()
    samples = ranks.own_samples(measures)
    stands = {
        "data": dict(course.position()),
        "generator": course.net.rng.bit_generator.state,
        "samples": samples,
    }
    ranks.merge(measures)
    found, every = ranks.joined(course.net, own, stands, samples, first_rows)
    if ranks.rank:
        return found
    return found + progress_sources(course, ranks, measures, course.position(), every)


def own_sources(
    course: Course, ranks: World, first_rows: dict[str, int] | None = None
) -> list[Source]:
    """What `training_sources` has of this process but for its progress, as it stands there."""
    begins: dict[str, int] | None = None if first_rows is None else {}
    learnt = state_sources(course.optimizer, begins)
    if first_rows is not None and begins is not None:
        first_rows |= {f"optimizer/{name}": first for name, first in begins.items()}
    return [
        *param_sources(ranks.here(course.net).params(), "net/"),
        *named_below("optimizer", learnt),
        *(
            source
            for start, each in keepers(course, ranks).items()
            for source in named_below(start, sources_of(each.state_dict(), WHERE))
        ),
    ]


def keepers(course: Course, ranks: World) -> dict[str, Stateful]:
    """What this rank has that keeps a state beside the optimizer, by where its arrays stand."""
    precision = course.compiled.precision
    found: dict[str, Stateful] = {} if precision is None else {"precision": precision}
    for name, callback in callbacks_by_name(course).items():
        if ranks.runs(callback):
            found[name] = callback
    return found


def callbacks_by_name(course: Course) -> dict[str, Stateful]:
    """The callbacks of all ranks, by where the arrays of each stand."""
    return {
        f"callback/{place}.{type(callback).__name__}": callback
        for place, callback in enumerate(course.callbacks)
    }


def named_below(start: str, sources: Sequence[Source]) -> list[Source]:
    """``sources`` with ``start`` and a slash in front of their names."""
    return [replace(each, name=f"{start}/{each.name}") for each in sources]


def progress_sources(
    course: Course,
    ranks: World,
    measures: Measures,
    position: Mapping[str, int],
    every: Sequence[Mapping[str, Any]] = (),
) -> list[Source]:
    """How far ``course`` is, and what ``measures`` have gathered in the epoch in work.

    ``every`` has position, generator and samples of each of several ranks.
    """
    state: dict[str, Array] = {}
    metrics: dict[str, Any] = {}
    if course.batch:
        gathered, metrics = save_metrics(measures.metrics)
        state |= {f"metric/{key}": v for key, v in gathered.items()}
    about = {
        "format": FORMAT,
        "epoch": course.epoch,
        "batch": course.batch,
        "step": course.step,
        "begun": course.compiled.epochs,
        "losses": measures.losses,
        "samples": measures.samples,
        "metrics": metrics,
        "data": dict(position),
        "seed": int(course.net.seed),
        "generator": course.net.rng.bit_generator.state,
        "ranks": list(every),
        "stages": ranks.places,
        "history": {"epochs": course.history.epochs, "values": dict(course.history)},
    }
    state["session"] = session_entry(about)
    return sources_of(state, WHERE)
