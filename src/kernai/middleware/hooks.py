"""`Hooks`: a middleware whose methods are called before and after models, tools and runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernai._util.api import check_function, likely, signature_of
from kernai.errors import ProviderError, Stop, error_text
from kernai.loop.effects import CallModel, CallProtocol, CallSkill
from kernai.loop.run_state import Run
from kernai.middleware.chain import Flow
from kernai.values.llm_response import LlmResponse
from kernai.values.result import Result
from kernai.values.skill_result import SkillResult

_HOOKS = ("on_run_start", "on_run_end", "before_model", "after_model", "before_tool", "after_tool", "on_error")


class HookContext:
    """One call: its `effect`, which a before-hook may replace, and its outcome (`response` for a model, else `result`).

    If a before-hook sets the outcome, the call is not made. `attempt` counts from 0.
    """

    def __init__(self, effect: CallModel | CallSkill | CallProtocol, attempt: int = 0) -> None:
        self.effect = effect
        self.scope = effect.scope
        self.call_id = effect.call_id
        self.attempt = attempt
        self.response: Any = None
        self.result: Any = None


class Hooks:
    """A middleware whose methods are hooks. Subclass it, write the hooks that you need, and put an instance into
    `Agent(middleware=[...])`.

    A tool is a skill or a protocol. `on_error` returns ``"retry"``, ``"fail"`` (the run ends), ``"skip"`` or None (the
    model reads the error of a call; a model call fails), ``"fallback"`` (for a model call: a `fallback()` earlier in
    the list calls its provider), or an `LlmResponse` or `SkillResult` to use as the outcome; anything else raises a
    `TypeError`. Hooks are plain functions. If a hook raises, its call fails with that error.

    A method with almost a hook's name, or with other arguments than the hook's, raises a `TypeError` when the class is
    defined. A before- or after-hook that returns a value, or sets the outcome of the other kind of call, raises one at
    the call, since this would have no effect.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        from inspect import getattr_static

        super().__init_subclass__(**options)
        for name in dir(cls):
            if name in _HOOKS:
                wanted = list(signature_of(getattr(Hooks, name)).parameters)
                start = isinstance(getattr_static(cls, name), (staticmethod, classmethod))  # they come without self
                check_function(f"{cls.__name__}.{name}", getattr(cls, name), f"({', '.join(wanted)})", *wanted[start:])
            elif _resembles_a_hook(name) and callable(getattr(cls, name)):
                hint = likely(name, _HOOKS, "they are")
                raise TypeError(f"{cls.__name__}.{name} is not a hook and would never be called{hint}")

    def on_run_start(self, run: Run) -> None: ...
    def on_run_end(self, run: Run, result: Result[Any]) -> None: ...
    def before_model(self, ctx: HookContext) -> None: ...
    def after_model(self, ctx: HookContext) -> None: ...
    def before_tool(self, ctx: HookContext) -> None: ...
    def after_tool(self, ctx: HookContext) -> None: ...
    def on_error(self, ctx: HookContext, error: Exception) -> Any: ...

    def __call__(self, effect: CallModel | CallSkill | CallProtocol) -> Flow:
        is_model = isinstance(effect, CallModel)
        before, after = (self.before_model, self.after_model) if is_model else (self.before_tool, self.after_tool)
        outcome = "response" if is_model else "result"
        attempt = 0
        while True:
            ctx = HookContext(effect, attempt)
            self._call(before, ctx, outcome)
            if getattr(ctx, outcome) is None:
                try:
                    setattr(ctx, outcome, (yield ctx.effect))
                except Exception as error:
                    wanted = self.on_error(ctx, error)
                    if wanted == "retry":
                        attempt += 1
                        continue
                    if wanted == "fail" and not is_model:
                        raise Stop("error", error_text(error)) from error
                    if wanted == "fallback" and is_model:
                        raise ProviderError(  # a `fallback` calls its provider for any of these
                            f"{type(self).__name__}.on_error returned 'fallback', but no fallback() is before it in "
                            f"the list: {error_text(error)}"
                        ) from error
                    if wanted in (None, "skip", "fail"):
                        raise
                    if not isinstance(wanted, LlmResponse if is_model else SkillResult):
                        others = "'fallback', None or an LlmResponse" if is_model else "None or a SkillResult"
                        raise TypeError(
                            f"{type(self).__name__}.on_error must return 'retry', 'fail', 'skip', {others}, "
                            f"got {wanted!r:.80}"
                        ) from error
                    setattr(ctx, outcome, wanted)
            self._call(after, ctx, outcome)
            return getattr(ctx, outcome)

    def _call(self, hook: Callable[[HookContext], object], ctx: HookContext, outcome: str) -> None:
        """Calls a hook. Raises `TypeError` if it returns a value or sets the outcome of the other kind of call: either
        would be ignored, so a guard would stop nothing.
        """
        returned, name = hook(ctx), f"{type(self).__name__}.{getattr(hook, '__name__', 'a hook')}"
        if returned is not None:
            raise TypeError(f"{name} returned {returned!r:.80}, which has no effect: raise, or set ctx.{outcome}")
        other = "result" if outcome == "response" else "response"
        if getattr(ctx, other) is not None:
            raise TypeError(f"{name} set ctx.{other}, which has no effect here: set ctx.{outcome}")


def _resembles_a_hook(name: str) -> bool:
    """Whether a name begins like a hook's, or differs from a hook's by about one letter."""
    if name.startswith(("_", "before_", "after_", "on_")):
        return name[0] != "_"
    from difflib import get_close_matches  # imported here, since most classes have only hooks

    return bool(get_close_matches(name.lower(), _HOOKS, 1, cutoff=0.9))
