"""Resumption of a fit from a saved training state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from singanet.base.processes import interrupted_after
from singanet.base.seeding import seeded_apart
from singanet.engine.net import Net
from singanet.errors import SingaNetError, one_of
from singanet.optimizer.chain import UpdateChain
from singanet.params.param_files import put_params
from singanet.training.batches import copied
from singanet.training.course import as_of_rank, is_own, with_all_rows
from singanet.training.files import Progress, parse_progress
from singanet.training.measures import load_metrics, mismatch
from singanet.training.options import Stateful
from singanet.training.ranks import ProcessGroup
from singanet.training.session import Session, callbacks_by_name, keepers
from singanet.types import Array, Shape

_Loaded = list[tuple[Stateful, dict[str, Array]]]


@interrupted_after()
def restore(session: Session, state: Mapping[str, Array]) -> None:
    """Restore ``session`` from a state of `training_sources`.

    Errors: `StateMismatchError` for parameters or callbacks that differ, with names and both
    shapes, and for a state that data, optimizer, metrics or callbacks refuse; `FileFormatError` for
    an incomplete state; `VersionError`. On an error everything is unchanged. Ctrl-C acts after the
    load.
    """
    net, ranks = session.net, session.ranks
    progress = parse_progress(state, net.rng.bit_generator)
    as_it_was = ranks.size == max(len(progress.ranks), 1)
    own = progress.ranks[ranks.rank] if as_it_was and progress.ranks else None
    if as_it_was:
        data, generator = (own or progress).data, (own or progress).generator
    else:
        were = max(len(progress.ranks), 1)
        if "drawn" in progress.data:
            expected = f"{were} ranks, as before, for data without a saved position"
            raise mismatch("net.fit, resume", expected, str(ranks.size))
        expect_ranks_of_parts("net.fit, resume", ranks.size, were, state)
        like = net.rng.bit_generator
        data, generator = progress.data, seeded_apart(progress.generator, like, ranks.rank)
    state = state_here(state, ranks, len(progress.ranks), _by_params(session))
    check_net(net, state)
    kept = _states_to_load(session, state)
    # Layers move to the stages of the checkpoint, so that each stage continues its own draws.
    with ranks.moved(progress.stages) if as_it_was else nullcontext(), _undoing(session):
        session.data.load_state_dict(data)
        steps = session.data.steps
        if steps is not None and progress.batch > steps:
            received = f"batch {progress.batch}"
            raise mismatch("net.fit, resume", f"at most {steps} batches an epoch", received)
        here = session.params()
        # A rate that was assigned before stays, unless the file has one.
        learnt = {**_assigned_rates(session), **below("optimizer/", state)}
        away = {param.name for param in net.params()} - {param.name for param in here}
        session.optimizer.load_state_dict(
            {key: array for key, array in learnt.items() if key.rpartition("/")[0] not in away}
        )
        session.rule._check_loaded({param.name: param.outline for param in here})
        # Only one rank restores the measures so far, so that they count once.
        if progress.batch and ranks.has_measured:
            metrics, arrays = session.measures.metrics, below("metric/", state)
            load_metrics(metrics, progress.metrics, arrays)
            session.measures.losses = dict(progress.losses)
            session.measures.samples = progress.samples
        for each, arrays in kept:
            each.load_state_dict(arrays)
        put_params(here, below("net/", state), net.device.put, "net.fit, resume")
    ranks.go_on(own.samples if own else 0, session.measures)
    net.rng.bit_generator.state = generator
    _set_position(session, progress)


def _assigned_rates(session: Session) -> dict[str, Array]:
    """Return the numbers that were assigned to the rule, by their names in `_hyper_state`."""
    rule = UpdateChain(session.optimizer).own_rule
    state = {} if rule is None else rule._hyper_state()
    return {key: array for key, array in state.items() if "." not in key}


def state_here(
    state: Mapping[str, Array], ranks: ProcessGroup, were: int, shapes: Mapping[str, Shape]
) -> dict[str, Array]:
    """Return the arrays of this rank, from the ``state`` of ``were`` ranks.

    If the number of ranks is the same, they are this rank's own. Otherwise they are the common
    ones, with the arrays of ``shapes`` joined from all ranks.
    """
    were = max(were, 1)
    if ranks.size != were:
        return as_of_rank(state, 0) | with_all_rows(state, were, shapes)
    own = as_of_rank(state, ranks.rank)
    return own | {f"net/{name}": array for name, array in below("local/", own).items()}


def expect_ranks_of_parts(where: str, are: int, were: int, state: Mapping[str, Array]) -> None:
    """Refuse gradients accumulated between micro-batches if the number of ranks has changed."""
    keys = (key.split("/", 2)[2] if is_own(key) else key for key in state)
    if any(key.startswith("optimizer/") and key.endswith("/gathered") for key in keys):
        expected = f"{were} ranks, as before, between micro-batches"
        raise mismatch(where, expected, str(are))


def _by_params(session: Session) -> dict[str, Shape]:
    """Return the shapes of callbacks' arrays that correspond to parameters, by their keys."""
    return {
        f"{start}/{param.name}": param.shape
        for start, each in callbacks_by_name(session).items()
        if getattr(each, "_goes_by_params", False)
        for param in session.net.params()
    }


def _set_position(session: Session, progress: Progress) -> None:
    session.net.seed = progress.seed
    session.epoch, session.batch = progress.epoch, progress.batch
    session.step, session.compiled.epochs = progress.step, progress.begun
    session.history.clear()
    session.history.epochs = list(progress.epochs)
    session.history.update(progress.values)
    session.history._absent = {
        each for each in session.history._absent if each[1] < len(progress.epochs)
    }
    session.resumed = True


@contextmanager
def _undoing(session: Session) -> Iterator[None]:
    """On an error in the block, restore the state before it; parameters are loaded last.

    Errors: `StateMismatchError` for an error of data, metrics or callbacks that is not ours.
    """
    before: list[tuple[Any, Any]] = [
        (session.data, session.data.state_dict()),
        (session.optimizer, session.optimizer.state_dict()),
    ]
    for each in keepers(session, session.ranks).values():
        before.append((each, {key: copied(array) for key, array in each.state_dict().items()}))
    measures = session.measures
    losses, samples = dict(measures.losses), measures.samples
    metrics = [(vars(metric), vars(metric).copy()) for metric in measures.metrics.values()]
    try:
        yield
    except BaseException as error:
        for each, state in before:
            with suppress(Exception):  # it may be the one that failed
                each.load_state_dict(state)
        measures.losses, measures.samples = losses, samples
        for own, values in metrics:
            own.clear()
            own.update(values)
        if isinstance(error, SingaNetError) or not isinstance(error, Exception):
            raise
        received = f"{type(error).__name__}: {error}"[:200]
        raise mismatch("net.fit, resume", "a state of this training", received) from error


def check_net(net: Net, state: Mapping[str, Array]) -> None:
    """Refuse a ``state`` with other parameters than ``net``. Errors: `StateMismatchError`."""
    saved = {key: tuple(array.shape) for key, array in below("net/", state).items()}
    own = {param.name: param.shape for param in net.params()}
    for name, shape in own.items():
        if saved.get(name) != shape:
            received = f"shape {saved[name]}" if name in saved else "no such parameter"
            raise mismatch(f"parameter {name!r}", f"shape {shape}, as in the net", received)
    extra = [name for name in saved if name not in own]
    if extra:
        expected = f"the parameters of the net, {len(own)} in all"
        raise mismatch("net.fit, resume", expected, f"{one_of(extra, 4)} as well")


def _states_to_load(session: Session, state: Mapping[str, Array]) -> _Loaded:
    """Return the arrays that each of `keepers` loads. Errors: `StateMismatchError` for others."""
    own = keepers(session, session.ranks)
    found = [(each, below(f"{start}/", state)) for start, each in own.items()]
    was = any(key.startswith("precision/") for key in state)
    if was != ("precision" in own):
        expected = f"a training {'in' if was else 'without'} mixed precision, as it was saved"
        raise mismatch("net.compile", expected, "the other kind")
    saved = {key.split("/")[1] for key in state if key.startswith("callback/")}
    given = [name.removeprefix("callback/") for name in callbacks_by_name(session)]
    if strange := sorted(saved - {*given}):
        expected = f"{one_of(strange)}, whose state was saved"
        raise mismatch("net.fit, callbacks", expected, one_of(given) or "none")
    return [(each, arrays) for each, arrays in found if arrays]


def below(start: str, state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays of ``state`` whose names begin with ``start``, without this prefix."""
    return {key[len(start) :]: array for key, array in state.items() if key.startswith(start)}
