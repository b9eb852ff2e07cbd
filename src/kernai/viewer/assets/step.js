// One step: the prose and blocks of the response in order, each block with its outcome.

const MOST_PARTS = 200; // shown of one step; the list of events has all

/** Problems that are shown with the block that they concern. The others are shown below all blocks. */
const AT_A_BLOCK = new Set(["forged_block", "plan_rejected", "quoted_call"]);

class StepDrawing {
  constructor(step, card) {
    this.step = step;
    this.card = card;
    this.index = 0; // number of the next call
    this.parts = 0;
    this.builtins = step.events.filter((event) => event.type.startsWith("builtin_"));
    this.workflow = step.events.find((event) => event.type === "workflow_start") ?? null;
    this.rejected = step.events.filter((event) => event.type === "plan_rejected");
    this.shown = new Set(); // calls and `run_resumed` events that are drawn already
    const isOver = step.scope.result || step.scope.steps.has(step.number + 1);
    this.answers = !isOver || step.events.some((event) => event.type === "final"); // whether the next `final` block counts
    this.corrected = this.workflow === null && step.calls.length === 0 && this.builtins.length === 0;
  }

  response(event) {
    const parsed = this.step.events.find((one) => one.n > event.n && one.type === "blocks_parsed");
    const blocks = Array.isArray(parsed?.data) ? parsed.data.filter(isObject) : [];
    const outline = Array.isArray(event.outline) ? event.outline : [...blocks.keys()];
    for (const part of outline) {
      if (this.full) return;
      if (typeof part === "string") this.card.append(textBlock(part.trim(), "text prose"));
      else if (blocks[part]) this.block(blocks[part]);
    }
  }

  get full() {
    return this.parts >= MOST_PARTS;
  }

  block(block) {
    const type = asText(block.type);
    const content = asText(block.content);
    if (type === "command") this.command(block, content);
    else if (type === "final") this.answer(content);
    else if (type === "plan") this.plan(content);
    else if (["result", "error", "media"].includes(type)) {
      this.part("problem", `${type} written by the model: ignored`, content);
    } else {
      const call = this.callAt("protocol", type);
      if (call) this.call(call, content, "protocol", block.name);
      else this.part("other", type, content, [block.name]);
    }
  }

  /** Only the first answer of a response counts, and none that was corrected or came with a call. */
  answer(content) {
    if (this.answers) this.part("answer", "Answer", content, [], "prose");
    else this.part("other", "Answer", content, ["does not count"], "prose");
    this.answers = false;
  }

  command(block, content) {
    const name = asText(block.name).trim();
    if (name.startsWith("/")) {
      this.index += 1;
      const at = this.builtins.findIndex((event) => asText(event.data?.command) === name);
      const [event] = at < 0 ? [] : this.builtins.splice(at, 1);
      const part = this.part("call", name, content, ["built-in"]);
      if (event) part.append(outcome(event));
      return;
    }
    const call = this.callAt("skill", null);
    if (call) this.call(call, content, "skill");
    else {
      this.index += 1;
      this.part("call", name || "command without a name", content, ["not run"]);
    }
  }

  /** The call made by the next block. Calls are numbered in the order of their blocks. */
  callAt(kind, name) {
    const call = this.step.callAt.get(this.index);
    if (!call || call.kind !== kind || (name !== null && call.name !== name)) return null;
    this.index += 1;
    return call;
  }

  call(call, content, ...kind) {
    this.shown.add(call);
    const shown = call.execute ? describe(call.execute).facts : [];
    const part = this.part(call.failed ? "call bad" : "call", call.name, content, [...kind, ...shown]);
    part.dataset.call = call.id;
    if (call.execute) part.firstChild.append(linkTo(call.execute.n));
    for (const event of call.progress.slice(-3)) {
      part.append(el("p", { class: "progress" }, "… ", write(el("span"), asText(event.data?.data).slice(0, 300))));
    }
    for (const event of call.decisions) part.append(decision(event));
    if (call.scope) part.append(scopeLink(call.scope));
    if (call.outcome) part.append(outcome(call.outcome, call.ms));
    else part.append(el("p", { class: "note" }, "No outcome is on record."));
  }

  plan(content) {
    const refused = this.rejected.find((event) => event.data?.raw === content);
    if (refused) {
      this.rejected = this.rejected.filter((event) => event !== refused);
      this.part("problem", "Plan, not run", content, [asText(refused.data.reason)]);
    } else if (this.workflow) this.runPlan(content);
    else this.part("flow", "Plan", content);
  }

  runPlan(content) {
    const { data } = this.workflow;
    const end = this.step.events.find((event) => !event.droppedBy && /^workflow_(complete|error)$/.test(event.type));
    const shown = [asText(data?.strategy), end ? duration(end.data?.duration_ms) : "not ended"];
    const part = this.part("flow", "Plan", asText(data?.goal), shown.filter(Boolean), "prose");
    part.firstChild.append(linkTo(this.workflow.n));
    const tasks = [...this.step.tasks.values()];
    part.append(el("ul", { class: "tasks" }, tasks.slice(0, MOST_PARTS).map(taskRow)));
    if (tasks.length > MOST_PARTS) part.append(el("p", { class: "note" }, `Of ${count(tasks.length)} tasks, ${MOST_PARTS} are shown here.`));
    if (content) part.append(...disclosure("Plan as written", "The plan as the model wrote it", () => [textBlock(content)]));
    if (end?.problem) part.append(outcome(end));
    this.workflow = null;
  }

  /** Draws what belongs to no block: calls whose block is not recorded, resumes, and events such as unknown types. */
  rest() {
    if (this.workflow) this.runPlan("");
    for (const call of this.step.calls) {
      if (!this.full && !this.shown.has(call)) this.call(call, asText(call.execute?.data?.params), call.kind);
    }
    for (const event of this.step.events) {
      if (this.full) break;
      if (event.droppedBy) continue;
      if (event.type === "run_resumed") this.shown.has(event) || this.drawResume(event);
      else if (isBelow(event)) {
        const { title, text, facts: shown } = describe(event);
        this.part(event.problem ? "problem" : "other", title, text, shown).firstChild.append(linkTo(event.n));
      }
    }
    if (this.full) this.card.append(el("p", { class: "note" }, `No more than ${MOST_PARTS} parts are shown here: the list of events has all.`));
  }

  /** Draws where the run was resumed, and the events that the resume dropped. */
  drawResume(event) {
    this.shown.add(event);
    const { title, facts: shown } = describe(event);
    const part = this.part("resume", title, "", shown);
    part.firstChild.append(linkTo(event.n));
    if (!event.dropped?.length) return;
    const label = `What was left out: ${counted(event.dropped.length, "event")}`;
    part.append(...disclosure(label, label, () => event.dropped.slice(0, MOST_PARTS).map((one) => {
      const { title: name, text } = describe(one);
      return el("div", { class: "left-out" }, linkTo(one.n), " ", span(null, name), text ? textBlock(text, "text", 300) : null);
    })));
  }

  part(family, title, text, shown = [], className = "") {
    const part = el("section", { class: `block ${family}` },
      el("header", null, el("h4", null, span(null, title)), facts(shown)));
    this.parts += 1;
    if (text) part.append(textBlock(text, `text ${className}`));
    this.card.append(part);
    return part;
  }
}

/** Whether an event is shown below the blocks, because it concerns none of them. */
function isBelow({ type, call }) {
  const { group, of_call: ofCall } = kindOf(type);
  return group === "other" || (group === "problem" && !AT_A_BLOCK.has(type)) || (Boolean(ofCall) && !call);
}

/** A note on a call: that it waited, who decided, or that it was interrupted. */
function decision(event) {
  const { data } = event;
  const refused = event.type === "approval_given" && isRefusal(data?.decision);
  const given = event.type === "approval_given" && !refused;
  const shown = {
    approval_requested: "waits for a decision", in_flight: "was running when the run was interrupted",
    approval_given: decided(isObject(data) ? data : {}),
  };
  const text = event.type === "approval_requested" ? asText(data?.reason) : describe(event).text;
  const made = el("div", { class: "decision" }, el("header", null,
    pill(shown[event.type] ?? describe(event).title, refused ? "failed" : given ? "done" : ""), linkTo(event.n)));
  if (text) made.append(textBlock(text));
  return made;
}

/** A call's result or error, shown below its block. */
function outcome(event, ms = null) {
  const shown = describe(event);
  const failed = event.type.endsWith("_error");
  const time = ms === null ? shown.facts : [duration(ms)];
  const made = el("div", { class: `outcome ${failed ? "failed" : "done"}` },
    el("header", null, pill(failed ? "error" : "result", failed ? "failed" : "done"), facts(time), linkTo(event.n)));
  if (shown.text) made.append(textBlock(shown.text));
  const media = mediaBlock(event.data);
  if (media) made.append(media);
  return made;
}

function scopeLink(scope) {
  const made = button("Its conversation", "Show this conversation alone", () => view.showScope(scope), "follow");
  made.setAttribute("aria-label", `Its conversation: ${visible(clip(scope.name))}`);
  return made;
}

function taskRow(task) {
  const event = task.outcome;
  const state = event ? (event.type === "task_error" ? "failed" : "done") : "open";
  const row = el("li", { class: state },
    el("header", null, pill({ failed: "error", done: "done", open: "not ended" }[state], state),
      write(el("strong"), clip(task.id)), facts([
        event ? duration(event.data?.duration_ms) : null,
        ...(task.scope?.usage.calls ? [task.scope.usage.tokens(), task.scope.usage.money()] : []),
      ]), task.scope ? scopeLink(task.scope) : null));
  if (event) row.append(textBlock(describe(event).text, "text prose", 300));
  return row;
}
