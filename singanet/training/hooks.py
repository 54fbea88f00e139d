"""The hooks of the callbacks of a fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from singanet.base.tracebacks import users_level
from singanet.errors import ArgumentError
from singanet.params.grads import LayerGradients
from singanet.training.callbacks.callback import Callback
from singanet.training.session import Session


class Hooks:
    """Calls the hooks in the order of the callbacks, and only the overridden ones."""

    def __init__(self, callbacks: Iterable[Any], session: Session) -> None:
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise ArgumentError(
                    "net.fit, callbacks",
                    expected="instances of singanet.training.Callback",
                    received=f"the class {callback.__name__}"
                    if isinstance(callback, type)
                    else f"a {type(callback).__name__}",
                    advice=f"write {callback.__name__}(...), an object"
                    if isinstance(callback, type)
                    else "subclass Callback and override its hooks",
                )
        if len({id(callback) for callback in self.callbacks}) != len(self.callbacks):
            raise ArgumentError(
                "net.fit, callbacks",
                expected="each callback once",
                received="one object twice",
                advice="construct a second one",
            )
        self._session = session
        # A callback on rank 0 alone may set the rate and read the loss of all ranks.
        begins, ends = (
            any(_overrides(callback, name) for callback in self.callbacks)
            for name in ("on_batch_begin", "on_batch_end")
        )
        self.callbacks = [each for each in self.callbacks if session.ranks.runs(each)]
        self._in_order = sorted(self.callbacks, key=lambda callback: callback._runs_last)
        self.begun: list[Callback] = []
        self.epoch_begin = self._overriding("on_epoch_begin")
        self.epoch_end = self._overriding("on_epoch_end")
        self.batch_begin = self._overriding("on_batch_begin")
        self.batch_end = self._overriding("on_batch_end")
        self.layer = self._overriding("on_layer_gradients")
        self.stop = self._overriding("on_stop")
        if ends and not self.batch_end:
            self.batch_end.append(lambda batch, logs: None)
        if begins or ends:
            self.batch_begin.append(lambda _: session.ranks.follow(session))

    def _overriding(self, name: str) -> list[Callable[..., None]]:
        those = [c for c in self._in_order if _overrides(c, name)]
        return [self._guarded(c, getattr(c, name)) for c in those]

    def _guarded(self, callback: Callback, hook: Callable[..., None]) -> Callable[..., None]:
        return self._session.ranks.heard(hook, callback, self._session)

    def train_begin(self) -> None:
        """Give every callback the session, then call its `on_train_begin`."""
        for callback in self.callbacks:
            callback._session = self._session
            self.begun.append(callback)
            self._guarded(callback, callback.on_train_begin)()

    def on_layer(self) -> Callable[[LayerGradients], None] | None:
        """Return the function that `FeedForwardNet.step` calls after each layer, or None."""
        if not self.layer:
            return None
        session, hooks = self._session, self.layer

        def see(item: LayerGradients) -> None:
            session.layer = item.layer
            for hook in hooks:
                hook(*item)

        return see

    def error(self, error: BaseException) -> None:
        """Call every `on_error`; an error inside a hook does not hide ``error``."""
        self._session.error = error
        for callback in self.begun:
            try:
                callback.on_error(error)
            except Exception as second:  # noqa: BLE001 - said, and the first one is raised
                warnings.warn(
                    f"{type(callback).__name__}.on_error failed: {second}",
                    RuntimeWarning,
                    stacklevel=users_level(),
                )

    def train_end(self) -> None:
        """Call `on_train_end` of every callback that began, then raise their first error."""
        first: BaseException | None = None
        ends = sorted(self.begun, key=lambda each: (not each._ends_first, each._runs_last))
        for callback in ends:
            try:
                self._guarded(callback, callback.on_train_end)()
            except BaseException as error:  # noqa: BLE001 - raised below
                first = first or error
        if first is not None and self._session.error is None:
            raise first

    def release(self) -> None:
        """Remove the session, so that a callback does not keep the data alive."""
        for callback in self.begun:
            callback._session = None


def _overrides(callback: Callback, name: str) -> bool:
    """Return whether the callback overrides the hook ``name``."""
    return getattr(type(callback), name) is not getattr(Callback, name)
