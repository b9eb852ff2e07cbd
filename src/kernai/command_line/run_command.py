"""`kernai run`, `resume` and `replay`: run an agent, continue a run, or compare an agent with a recording."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, Namespace
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from kernai.agents.agent import Agent
from kernai.command_line import agents, output, stores
from kernai.command_line.narrator import LOUDNESS, Narrator, carried_out
from kernai.command_line.output import DEBUG_HINT, NO, OK, CommandError
from kernai.command_line.program import Argument, Command, Group, valid_text
from kernai.command_line.recording import FORMS, Source, recording_of, source
from kernai.durable.approvals import Decision
from kernai.durable.durable_run import IN_FLIGHT
from kernai.durable.recorded_run import RecordedRun
from kernai.errors import KernaiError, ReplayDivergenceError, ReplayLoosenedError, RunDamagedError, error_text
from kernai.runs.resume_request import Replay
from kernai.runs.run_request import UserInput
from kernai.runs.running import execute, replay, resume
from kernai.values.context import Context
from kernai.values.limits import Limits
from kernai.values.model import Model
from kernai.values.pending_calls import PendingCall
from kernai.values.result import Result


def _run(options: Namespace) -> int:
    if agents.is_made(options) and options.input is None:
        options.agent, options.input = None, options.agent
    elif options.agent is None and not agents.is_made(options):
        raise CommandError("there is no agent", agents.NAME_ONE)
    elif options.input is None and " " in options.agent and ".py" not in options.agent:
        hint = f"a question comes after the agent ({agents.AGENT_FORMS}), or alone with --system TEXT or --skills FILE"
        raise CommandError(f"no agent at {options.agent!r}", hint)
    with agents.prepared(options, "run") as (agent, limits):
        return _execute(agent, limits, options)


def _execute(agent: Agent[Any], limits: Limits, options: Namespace) -> int:
    given = _input(options)
    context = Context()
    if not options.quiet:
        agents.note_unseen(options.media, agent.model)
    run_id = stores.new_run_id() if options.run_id is None else options.run_id
    if not run_id:
        raise CommandError("--run-id is empty", "leave it out for a random one")
    with _kept(options, run_id) as store, recording_of(options, context.media_store) as recording:
        return carried_out(
            lambda view: execute(
                agent, given, context=context, limits=limits, on_event=view, run_id=run_id,
                recorder=None if recording is None else recording.recorder,
                store=None if store is None else store.store,
            ),
            options, recording=recording,
            again=None if store is None else store.again(agents.same_agent(options), run_id),
        )


def _kept(options: Namespace, run_id: str) -> AbstractContextManager[stores.RunStore | None]:
    """The store that `--store` names, if given. Raises `CommandError` if it already has a run `run_id`."""
    if options.store is None:
        return nullcontext()
    store = stores.RunStore(options.store, make=True)
    if store.info(run_id) is not None:
        store.store.close()
        again = store.again(agents.same_agent(options), run_id)
        hint = f"`{again}` continues it; or choose another --run-id"
        raise CommandError(f"{store.path} already has a run {run_id!r}", hint)
    if options.run_id is None and not options.quiet:
        output.note(f"run {run_id} in {store.path}")
    return store


def _input(options: Namespace) -> UserInput:
    """The input for the run: the text, or a list of the text and media."""
    text: str | None = options.input
    try:
        (text or "").encode("utf-8")
    except UnicodeEncodeError as error:  # Python decodes invalid bytes of an argument as lone surrogates
        wrong = f"INPUT: character {error.start} is not valid in the terminal's encoding"
        raise CommandError(wrong, "pipe it in as UTF-8, with -") from error
    if text == "-" or (text is None and not output.is_terminal(sys.stdin)):
        # the line break at the end of a file or of `echo` does not belong to the question
        text = output.read_text("-").rstrip("\r\n")
    if not (text or "").strip():
        if not options.media:
            hint = 'give it as the second argument, kernai run AGENT "...", or pipe it in'
            raise CommandError("there is no input", hint)
        return list(options.media)
    assert text is not None
    return [text, *options.media] if options.media else text


def _resume(options: Namespace) -> int:
    words = [one for one in (options.agent, *options.words) if one is not None]
    if options.store is not None:
        words.insert(max(len(words) - 1, 0), options.store)
    if len(words) not in (2, 3) or (len(words) == 2 and words[0].partition(":")[0].endswith(".py")):  # noqa: PLR2004 - a store and a run
        hint = "kernai resume AGENT STORE RUN; `kernai runs STORE` lists the runs"
        raise CommandError("give an agent, a store and a run", hint)
    options.agent, path, options.run = (None, *words)[-3:]
    with stores.RunStore(path) as store:
        waiting = _waiting(options, store)
        decisions = _decisions(options, waiting)
        given: dict[str, Any] = {"in_flight": options.in_flight, "approvals": decisions}
        text = output.read_text("-").rstrip("\r\n") if options.input == "-" else options.input
        if text is not None:
            if not text.strip():
                raise CommandError("--input is empty", "say something, or leave it out")
            if waiting.keys() - decisions.keys():
                hint = f"those that wait: {stores.call_lines(waiting.values())}"
                raise CommandError("--input: the run waits for a decision first", hint)
            given["input"] = text
        with agents.prepared(options, "run") as (agent, limits):
            return _continue(agent, limits, options, store, given)


def _continue(agent: Agent, limits: Limits, options: Namespace, store: stores.RunStore, given: dict[str, Any]) -> int:
    again = store.again(agents.same_agent(options), options.run)
    # unlike `resume`, `replay` has no default agent
    words = agents.same_agent(options, ("system", "skills")) or ("--system", agents.INSTRUCTIONS)
    model = () if options.model is None else ("--model", options.model)
    compared = stores.command("replay", *words, *model, store.path, options.run)

    def start(view: Narrator) -> Result:
        try:
            return resume(agent, options.run, store=store.store, limits=limits, on_event=view, **given)
        except ValueError:
            # raises the more precise error if somebody else has decided in the meantime
            _decisions(options, _waiting(options, store))
            raise

    return carried_out(start, options, again=again, replay=compared)


def _waiting(options: Namespace, store: stores.RunStore) -> dict[str, PendingCall]:
    """The run's calls that wait for a decision, by call id."""
    return RecordedRun(options.run, store.entries(options.run)).waiting


def _decisions(options: Namespace, waiting: dict[str, PendingCall]) -> dict[str, Decision]:
    """The user's decisions, by call id. Raises `CommandError` for a call that does not wait for one."""
    who = stores.login_name() if options.by is None else options.by
    decisions: dict[str, Decision] = {}
    refused = [(call, why or False) for call, _, why in (one.partition("=") for one in options.refuse)]
    for call, value in [*((call, True) for call in options.approve), *refused]:
        if call in decisions:
            raise CommandError(f"there are two decisions on call {call!r}", "give one --approve or --refuse per call")
        if call not in waiting:
            raise stores.not_waiting(call, options.run, waiting)
        decisions[call] = Decision(value, by=who)
    return decisions


# ---------------------------------------------------------------------------------------------------------- replay


def _replay(options: Namespace) -> int:
    recording = _recording(options)
    found: Replay[Any] | ReplayDivergenceError
    try:
        found = _replayed(options, recording)
    except ReplayDivergenceError as divergence:
        found = divergence
    is_same = isinstance(found, Replay) and not (options.strict and found.changes)
    data: dict[str, Any] = {"same": is_same, "divergence": None, "loosened": {}, "changes": []}
    lines: list[tuple[str, str | None]]
    if isinstance(found, Replay):
        data["changes"] = list(found.changes)
        lines = [("the same" if found.result is not None else "the same, as far as the recording goes", None)]
        lines += [(f"changed: {change}", "red" if options.strict else "dim") for change in found.changes]
    elif isinstance(found, ReplayLoosenedError):
        data["loosened"] = found.loosened
        lines = [("the agent decides the same, but has lost protections since the recording:", "bold")]
        for key, lost in found.loosened.items():
            lines += [(f"- {lost}", "red"), (f"  to accept it: --accept {key}", None)]
    else:
        data["divergence"] = {"seq": found.seq, "event": found.event, "recorded": found.expected, "now": found.got}
        agent = stores.command(*agents.same_agent(options, ("system", "skills"))).removeprefix("kernai ")
        lines = [(f"--- {recording}", "bold"), (f"+++ {agent}, now", "bold")]
        lines += [(f"@@ event {found.seq}: {found.event} @@", "cyan")]
        lines += [(f"-{line}", "red") for line in found.expected.splitlines()]
        lines += [(f"+{line}", "green") for line in found.got.splitlines()]
    if options.json:
        output.write_json(data)
    else:
        for text, style in lines:
            output.write(text, style)
    return OK if is_same else NO


def _recording(options: Namespace) -> Source:
    """The run to compare with. If options define the agent, the first word belongs to the recording."""
    words = options.words
    if agents.is_made(options) and options.agent is not None:
        options.agent, words = None, [options.agent, *words]
    if not words and options.agent is not None and ".py" in options.agent:
        raise CommandError(f"there is no recording after {options.agent!r}", f"name {FORMS}")
    if not words:
        raise CommandError(f"there is no agent before {options.agent or 'the recording'!r}", agents.NAME_ONE)
    recording = source(words if options.store is None else [options.store, *words])
    if recording.run_id is not None and options.run_id is not None:
        raise CommandError("--run-id is for a recording with several runs", "leave it out")
    return recording


def _replayed(options: Namespace, recording: Source) -> Replay[Any]:
    with nullcontext() if recording.run_id is None else stores.RunStore(recording.path) as store:
        if store is None:
            given: dict[str, Any] = {"recording": recording.events()}
        else:
            store.entries(recording.run_id or "")  # raises the more precise error if the run does not exist
            given = {"store": store.store}
        if options.run_skills:
            given["skills"] = "run"
        run_id = options.run_id if store is None else recording.run_id
        with agents.agent_of(options, "run") as agent, output.stdout_is_stderr():
            try:
                return replay(agent, run_id, model=_model_of_replay(options.model), accept=options.accept, **given)
            except (ReplayDivergenceError, RunDamagedError):
                raise
            except KernaiError as error:
                has_several = len({entry.get("run_id") for entry in given.get("recording", ())}) > 1
                hint = "--run-id says which run of a recording with several" if has_several else DEBUG_HINT
                raise CommandError(error_text(error), hint) from error


def _model_of_replay(name: str | None) -> Model | None:
    if name is None:
        return None
    from kernai_providers.vendors import capabilities_of

    plain = name.partition("/")[2] or name
    return Model(plain, capabilities_of(plain))


_RESULT = Argument("--json", "the whole result as JSON on stdout")
_OLDER = Argument("--store STORE", SUPPRESS)  # the older spelling: AGENT --store STORE RUN
_RUN_ARGUMENTS = (
    *agents.AGENT, Argument("INPUT", "the question or task; - reads stdin", nargs="?"), *agents.MODEL,
    Argument("--media FILE|URL...", "an image or other media to send after the input; repeatable", agents.media_at),
    Argument("--record FILE", "write a recording: .json at the end, or .jsonl as the run goes"),
    _RESULT, LOUDNESS, *stores.SAVING,
)
_RESUME_ARGUMENTS = (
    *agents.AGENT, Argument("STORE RUN", "a run in a store; see `kernai runs STORE`", name="words", nargs="*"), _OLDER,
    Group(
        Argument("--approve CALL...", "approve this call; repeatable"),
        Argument("--refuse CALL[=WHY]...", "refuse this call, and give the model the reason WHY; repeatable",
                 valid_text),
        stores.BY,
        title="decisions", note="on waiting calls; `kernai approve` decides without continuing the run",
    ),
    Argument("--input TEXT", "the user's next message; - reads stdin", valid_text),
    Argument("--in-flight", "what to do with calls that were interrupted (default: fail)",
             choices=IN_FLIGHT, default="fail"),
    *agents.MODEL, _RESULT, LOUDNESS,
)
_REPLAY_ARGUMENTS = (
    *agents.AGENT, Argument("RECORDING | STORE RUN", FORMS, name="words", nargs="*"), _OLDER,
    Argument("--run-id RUN", "which run, if the recording has several"),
    Argument("--model VENDOR/NAME", "the model of the recorded run, if not the agent's own"),
    Argument("--accept KEY...", "accept the loss of this protection; repeatable"),
    Argument("--strict", "treat any change to the agent as a difference"),
    Argument("--run-skills", "call the skills and compare their results"),
    Argument("--json", "the difference as JSON on stdout"),
)
COMMANDS = {
    "run": Command(_run, _RUN_ARGUMENTS, f"""\
Run an agent once. AGENT is {agents.AGENT_FORMS}. If a file has several agents and you give no NAME, the one called
`agent` runs. For an ad-hoc agent, pass --system or --skills instead of AGENT; the first argument is then the input.
Pass - as the input, or pipe it in without one, to read it from stdin.
The answer goes to stdout, progress to stderr.

With --store the run survives a crash and can wait for a person's decision; `kernai resume` continues it.""", """\
kernai run agent.py "How many lamps do we have?"
kernai run shop.agents:stock "Take stock." --model openai/gpt-4o-mini --record run.jsonl
kernai run agent.py "What is this?" --media photo.png --media https://example.com/plan.pdf
cat question.txt | kernai run agent.py --quiet --timeout 60
kernai run agent.py - --json < question.txt
kernai run "How many lamps do we have?" --skills stock.py --model ollama/llama3.1
kernai run "Which sea is this?" --system "Answer in one word." --model local/qwen3 --base-url http://127.0.0.1:8080/v1
kernai run clerk.py "Refund order 42" --store runs.db --run-id refund-42"""),
    "resume": Command(_resume, _RESUME_ARGUMENTS, f"""\
Continue a run in a store: after a crash, a limit, a cancellation or a vendor's failure, with a decision on a waiting
call, or with the user's next message. Completed calls are not repeated. If the run has finished, its answer is printed.
AGENT must be the agent that started the run: {agents.AGENT_FORMS}.

A call that was running when the process died may have taken effect, so by default resuming fails and lists such calls.
`--in-flight skip` informs the model that the outcome is unknown; `--in-flight retry` makes the call again. Skills
marked idempotent are always called again.""", """\
kernai resume clerk.py runs.db refund-42
kernai resume clerk.py runs.db refund-42 --approve 1.0
kernai resume clerk.py runs.db refund-42 --refuse 1.0="order 42 was never paid" --by ann
kernai resume clerk.py runs.db refund-42 --input "And order 43?\""""),
    "replay": Command(_replay, _REPLAY_ARGUMENTS, f"""\
Run an agent against a recording and compare every decision: which calls it makes, what it sends the model, and how it
ends. No model, skill or network is called, so any recorded run can serve as a test. AGENT is {agents.AGENT_FORMS}.

An agent that decides the same but has lost a protection, such as an approval, counts as different too; use --accept for
a loss that you have reviewed. Other changes to the agent are listed, and count as differences with --strict.

The recording is a file, or a run in a store. Exit status: 0 the same, 1 different, 2 no recording.""", """\
kernai replay agent.py run.jsonl
kernai replay clerk.py runs.db refund-42
kernai replay clerk.py runs.db refund-42 --accept refund.approval --strict
kernai replay agent.py talk.jsonl --run-id 4f0c2a91b7de"""),
}
