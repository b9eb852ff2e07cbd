"""`kernai run`, `resume` and `replay`: run an agent, continue a run, or compare an agent with a recording."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentTypeError, Namespace
from contextlib import nullcontext
from typing import Any

import kernai
from kernai.command_line import agents, output, stores
from kernai.command_line.narrator import LOUDNESS, carried_out
from kernai.command_line.output import DEBUG_HINT, NO, OK, CommandError, failing
from kernai.command_line.program import Command, argument, group, valid_text
from kernai.command_line.recording import FORMS, Recording, Source, source
from kernai.durable.durable_run import IN_FLIGHT
from kernai.errors import error_text
from kernai.runs.run_request import UserInput


def _run(options: Namespace) -> int:
    if agents.is_made(options) and options.input is None:
        options.agent, options.input = None, options.agent
    elif not agents.is_made(options):
        agents.place_of(options.agent)
    run_id = stores.new_run_id() if options.run_id is None else options.run_id
    if options.store is not None:
        stores.check_id(run_id)
    elif not run_id:  # before an earlier recording is replaced
        raise CommandError("--run-id is empty", "leave it out for a random one")
    elif options.run_id is not None and options.record is None and not options.quiet:
        output.note("note: --run-id without --store or --record: the run is not kept", "yellow")
    media = kernai.MediaStore()
    # first: a wrong file name must not leave an empty store
    record = nullcontext() if options.record is None else Recording(options.record, media, quiet=options.quiet)
    kept = nullcontext() if options.store is None else stores.StoreAt(options.store, make=True)
    with agents.prepared(options) as (agent, limits):
        given = _input(options)
        agents.note_unseen(options.media, agent.model, quiet=options.quiet)
        with kept as store:
            again = None
            if store is not None:
                again = stores.command("resume", *agents.same_agent(options), store.path, run_id)
                if store.info(run_id) is not None:
                    hint = f"`{again}` continues it; or choose another --run-id"
                    raise CommandError(f"{store.path} already has a run {run_id!r}", hint)
                output.note(f"run {run_id} in {store.path}", quiet=options.quiet or options.run_id is not None)
            with record as recorder:
                return carried_out(
                    lambda view: kernai.execute(
                        agent, given, context=kernai.Context(media_store=media), limits=limits, on_event=view,
                        run_id=run_id, recorder=recorder, store=None if store is None else store.store,
                    ),
                    options, again=again, is_kept=lambda: store is None or store.keeps(run_id),
                )


def _input(options: Namespace) -> UserInput:
    with failing("INPUT", "pipe it in as UTF-8, with -", ArgumentTypeError):
        text = valid_text(options.input or "")
    if text == "-" or (options.input is None and not output.is_terminal(sys.stdin)):
        text = output.read_text("-").rstrip("\r\n")  # the line break at the end comes from a file or `echo`
    if not text.strip() and not options.media:
        raise CommandError("there is no input", 'give it as the second argument, kernai run AGENT "...", or pipe it in')
    if not options.media:
        return text
    return [text, *options.media] if text.strip() else list(options.media)


# ---------------------------------------------------------------------------------------------------------- resume


def _resume(options: Namespace) -> int:
    words = [one for one in (options.agent, *options.words) if one is not None]
    if options.store is not None:
        words.insert(max(len(words) - 1, 0), options.store)
    needs_no_agent = options.model is not None or agents.is_made(options)
    if options.words and not needs_no_agent:
        agents.place_of(options.agent)
    if len(words) != 3 and (len(words) != 2 or not needs_no_agent or words[0].partition(":")[0].endswith(".py")):  # noqa: PLR2004 - a store and a run
        hint = "kernai resume AGENT STORE RUN; `kernai runs STORE` lists the runs"
        raise CommandError("give an agent, a store and a run", hint)
    options.agent, path, options.run = (None, *words)[-3:]
    with stores.StoreAt(path) as store, agents.prepared(options) as (agent, limits):
        decisions = _decisions(options, store)
        more: dict[str, Any] = {"in_flight": options.in_flight, "approvals": decisions, "limits": limits}
        if options.input is not None:
            more["input"] = output.read_text("-").rstrip("\r\n") if options.input == "-" else options.input
            if not more["input"].strip():
                raise CommandError("--input is empty", "say something, or leave it out")
        again = stores.command("resume", *agents.same_agent(options), store.path, options.run)
        # unlike `resume`, `replay` has no default agent
        words = [] if options.agent is not None or agents.is_made(options) else ["--system", agents.INSTRUCTIONS]
        words += agents.same_agent(options, ("system", "skills", "model", "model_capabilities", "max_steps"))
        return carried_out(
            lambda view: kernai.resume(agent, options.run, store=store.store, on_event=view, **more),
            options, again=again, replay=stores.command("replay", *words, store.path, options.run),
        )


def _decisions(options: Namespace, store: stores.StoreAt) -> dict[str, kernai.Decision]:
    """The user's decisions by call id. Raises `CommandError` for a call that does not wait, and for an input to
    a run whose calls still wait.
    """
    info = store.existing(options.run)
    waiting = {call.call_id: call for call in info.not_in_flight()}
    decisions: dict[str, kernai.Decision] = {}
    for given, approves in [*((one, True) for one in options.approve), *((one, False) for one in options.refuse)]:
        call, value = stores.decided(given, options.run, waiting, approves=approves)
        if call in decisions:
            raise CommandError(f"there are two decisions on call {call!r}", "give one --approve or --refuse per call")
        decisions[call] = kernai.Decision(value, by=stores.login_name() if options.by is None else options.by)
        with failing(f"--refuse {call}", "say why, or use --approve", ValueError):
            decisions[call].check_for(waiting[call].params)
    undecided = [call for key, call in waiting.items() if key not in {*decisions, *info.decisions, *info.due}]
    if options.input is not None and undecided:
        hint = f"--approve or --refuse those that wait: {stores.call_lines(undecided)}"
        raise CommandError("--input: the run waits for a decision first", hint)
    return decisions


# ---------------------------------------------------------------------------------------------------------- replay


def _replay(options: Namespace) -> int:
    words = options.words
    if not agents.is_made(options):
        agents.place_of(options.agent)
    elif options.agent is not None:  # options define the agent, so the first word belongs to the recording
        options.agent, words = None, [options.agent, *words]
    if not words:
        raise CommandError("there is no recording to compare with", f"name {FORMS}")
    recording = source(words if options.store is None else [options.store, *words])
    if recording.run_id is not None and options.run_id is not None:
        raise CommandError("--run-id is for a recording with several runs", "leave it out")
    data: dict[str, Any] = {"same": False, "divergence": None, "loosened": {}, "changes": []}
    lines: list[tuple[str, str | None]]
    try:
        found = _replayed(options, recording)
        data |= {"same": not (options.strict and found.changes), "changes": list(found.changes)}
        same = "the same" if found.result is not None else "the same, as far as the recording goes"
        lines = [(same if data["same"] else "the agent decides the same, but has changed since the recording:", None)]
        lines += [(f"- {change}", "red" if options.strict else "dim") for change in found.changes]
    except kernai.ReplayLoosenedError as error:
        data["loosened"] = error.loosened
        lines = [("the agent decides the same, but has lost protections since the recording:", "bold")]
        for key, lost in error.loosened.items():
            how = stores.command("--accept", key).removeprefix("kernai ")
            lines += [(f"- {lost}", "red"), (f"  to accept it: {how}", None)]
    except kernai.ReplayDivergenceError as error:
        data["divergence"] = {"seq": error.seq, "event": error.event, "recorded": error.expected, "now": error.got}
        agent = stores.command(*agents.same_agent(options, ("system", "skills"))).removeprefix("kernai ")
        lines = [(f"--- {recording}", "bold"), (f"+++ {agent}, now", "bold")]
        lines += [(f"@@ event {error.seq}: {error.event} @@", "cyan")]
        lines += [(f"-{line}", "red") for line in error.expected.splitlines()]
        lines += [(f"+{line}", "green") for line in error.got.splitlines()]
    if options.json:
        output.write_json(data)
    else:
        for text, style in lines:
            output.write(text, style)
    return OK if data["same"] else NO


def _replayed(options: Namespace, recording: Source) -> kernai.Replay[Any]:
    model, recorded_with = None, "name the one that made the recording, as VENDOR/NAME"
    if options.model is not None:
        from kernai_providers.vendors import capabilities_of

        name = options.model.partition("/")[2] or options.model
        with failing("--model", recorded_with, ValueError):
            model = kernai.Model(name, options.model_capabilities or capabilities_of(name))
    elif options.model_capabilities is not None:
        raise CommandError("--model-capabilities is for a --model, and there is none", recorded_with)
    with nullcontext() if recording.run_id is None else stores.StoreAt(recording.path) as store:
        given: dict[str, Any] = {"skills": "run"} if options.run_skills else {}
        run_id = options.run_id if recording.run_id is None else recording.run_id
        if store is None:
            given["recording"] = recording.events()
        else:
            store.existing(run_id)
            given["store"] = store.store
        with agents.agent_of(options) as agent, output.stdout_is_stderr():
            try:
                return kernai.replay(agent, run_id, model=model, accept=options.accept, **given)
            except (kernai.ReplayDivergenceError, kernai.RunDamagedError):
                raise
            except kernai.KernaiError as error:
                has_several = len({str(entry.get("run_id")) for entry in given.get("recording", ())}) > 1
                hint = "--run-id says which run of a recording with several" if has_several else DEBUG_HINT
                raise CommandError(error_text(error), hint) from error


_RESULT = argument("--json", "the whole result as JSON on stdout")
_OLDER = argument("--store STORE", SUPPRESS)  # the older spelling: AGENT --store STORE RUN
COMMANDS = {
    "run": Command(_run, (
        *agents.AGENT, argument("INPUT", "the question or task; - reads stdin", nargs="?"), *agents.MODEL,
        argument("--media FILE|URL...", "an image or other media to send after the input; repeatable", agents.media_at),
        _RESULT, LOUDNESS, *stores.SAVING,
    ), f"""\
Run an agent once. AGENT is {agents.AGENT_FORMS}. If a file has several agents and you give no NAME, the one called
`agent` runs. For an ad-hoc agent, pass --system or --skills instead of AGENT; the first argument is then the input.
Pass - as the input, or pipe it in without one, to read it from stdin.
The answer goes to stdout, progress to stderr.

With --store the run survives a crash and can wait for a person's decision; `kernai resume` continues it.""", """\
kernai run agent.py "How many lamps do we have?"
kernai run shop.agents:stock "Take stock." --model openai/gpt-6-luna --record run.jsonl
kernai run agent.py "What is this?" --media photo.png --media https://example.com/plan.pdf
cat question.txt | kernai run agent.py --quiet --timeout 60
kernai run agent.py - --json < question.txt
kernai run "How many lamps do we have?" --skills stock.py --model ollama/llama3.1
kernai run "Which sea is this?" --system "Answer in one word." --model local/qwen3 --base-url http://127.0.0.1:8080/v1
kernai run clerk.py "Refund order 42" --store runs.db --run-id refund-42"""),
    "resume": Command(_resume, (
        *agents.AGENT, argument("STORE RUN", "a run in a store; see `kernai runs STORE`", name="words", nargs="*"),
        _OLDER, group(
            argument("--approve CALL[=ANSWER]...", "approve this call, or answer its question; repeatable", valid_text),
            argument("--refuse CALL[=WHY]...", "refuse this call; the model reads WHY; repeatable", valid_text),
            stores.BY,
            title="decisions", note="on waiting calls; `kernai approve` decides without continuing the run",
        ),
        argument("--input TEXT", "the user's next message; - reads stdin", valid_text),
        argument("--in-flight", "what to do with calls that were interrupted (default: fail)",
                 choices=IN_FLIGHT, default="fail"),
        *agents.MODEL, _RESULT, LOUDNESS,
    ), f"""\
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
    "replay": Command(_replay, (
        *agents.AGENT, argument("RECORDING | STORE RUN", FORMS, name="words", nargs="*"), _OLDER,
        argument("--run-id RUN", "which run, if the recording has several"),
        argument("--model VENDOR/NAME", "the model of the recorded run, if not the agent's own"),
        agents.ABILITIES, agents.MAX_STEPS,
        argument("--accept KEY...", "accept the loss of this protection; repeatable"),
        argument("--strict", "treat any change to the agent as a difference"),
        argument("--run-skills", "call the skills and compare their results"),
        argument("--json", "the difference as JSON on stdout"),
    ), f"""\
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
