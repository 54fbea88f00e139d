"""Callbacks that act at one hook."""

from singanet.training import Callback


def at(hook, act, **members):
    """A callback that calls ``act(session, ...)`` at ``hook``, with the arguments of the hook.

    ``members`` are other attributes of its class, as ``_runs_last``.
    """
    given = {hook: lambda self, *arguments: act(self.session, *arguments), **members}
    return type("At", (Callback,), given)()


def stop_at(step, why="for now"):
    """A callback that stops the fit at the end of that step."""
    return at("on_batch_end", lambda session, *_: session.step == step and session.stop(why))


def raise_at(step, error):
    """A callback that raises before the step after ``step`` steps."""

    def act(session, *_):
        if session.step == step:
            raise error

    return at("on_batch_begin", act)
