"""`Hooks`: a middleware for those who think in hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernai._util.callables import is_async
from kernai.errors import Stop, error_text
from kernai.loop.effects import CallModel, CallProtocol, CallSkill

if TYPE_CHECKING:
    from kernai.loop.run_state import Run
    from kernai.middleware.chain import Flow
    from kernai.values.result import Result

_HOOKS = ("on_run_start", "on_run_end", "before_model", "after_model", "before_tool", "after_tool", "on_error")


class HookContext:
    """One call: its `effect`, which a before-hook may replace, and its outcome, `response` for a model, else `result`.

    An outcome that is set before the call takes its place. `attempt` counts from 0.
    """

    def __init__(self, effect: CallModel | CallSkill | CallProtocol, attempt: int = 0) -> None:
        self.effect = effect
        self.scope = effect.scope
        self.call_id = effect.call_id
        self.attempt = attempt
        self.response: Any = None
        self.result: Any = None


class Hooks:
    """Subclass it, write the hooks that you need, and put an instance into `Agent(middleware=[...])`.

    A tool is a skill or a protocol. `on_error` gives ``"retry"``, ``"fail"`` (the run ends), ``"skip"`` (the model
    reads the error of a call; a model call fails), or a response or result in the failed one's place. Hooks are plain
    functions; what one raises is the failure of its call.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        wrong = [name for name in _HOOKS if is_async(getattr(cls, name))]
        if wrong:
            raise TypeError(f"{cls.__name__}.{wrong[0]} is an async function: hooks are plain ones, for both worlds")

    def on_run_start(self, run: Run) -> None: ...
    def on_run_end(self, run: Run, result: Result[Any] | None) -> None: ...
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
            before(ctx)
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
                    if wanted in (None, "skip", "fail"):
                        raise
                    setattr(ctx, outcome, wanted)
            after(ctx)
            return getattr(ctx, outcome)
