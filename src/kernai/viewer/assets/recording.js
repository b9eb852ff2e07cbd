// The recording as objects: runs, their scopes, the steps of a scope, the calls of a step. Events are added one by one,
// so that a run in progress and a finished one are built in the same way. Fields of an event may be missing, or have any
// value.

const UNKNOWN_KIND = { group: "other" };

/** The facts about an event's type. `page.py` makes the table from `kernai.events`. */
function kindOf(type) {
  return KINDS.get(type) ?? UNKNOWN_KIND;
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A span of time that covers all times seen so far, in milliseconds since 1970; null before the first. */
class Span {
  constructor() {
    this.start = null;
    this.end = null;
  }

  see(at) {
    if (at === null) return;
    if (this.start === null || at < this.start) this.start = at;
    if (this.end === null || at > this.end) this.end = at;
  }

  get length() {
    return this.start === null ? null : this.end - this.start;
  }
}

class Step {
  constructor(scope, number) {
    this.scope = scope;
    this.number = number;
    this.key = `${scope.key}:${number}`;
    this.span = new Span();
    this.usage = new Usage();
    this.first = null;
    this.events = [];
    this.calls = []; // calls, in the order of their first event
    this.callAt = new Map(); // calls by the number of their block, which is the end of the call's id
    this.tasks = new Map(); // by task id
    this.parts = []; // calls and sub-runs, in the order in which they were first seen
    this.version = 0;
    this.problem = false;
  }
}

class Scope {
  constructor(run, path, parent, step) {
    this.run = run;
    this.path = path;
    this.parent = parent;
    this.step = step; // the step of the parent that began this sub-run
    this.key = `${run.index}:${path}`;
    this.label = path.slice(path.lastIndexOf("/") + 1);
    this.span = new Span();
    this.usage = new Usage(); // of this scope and all below it
    this.steps = new Map();
    this.begun = null; // run_start, or run_resumed if the recording begins there
    this.result = null;
    this.first = null;
    this.call = null; // the call that began it, if it is an agent called as a skill
    this.task = null; // or the task
    this.problem = false;
    this.version = 0;
    this.lost = []; // sub-runs whose step is not recorded
  }

  get name() {
    if (this.parent === null) return this.run.name;
    if (this.task) return this.task.id;
    return this.call ? this.call.name : this.agent ?? this.label;
  }

  get agent() {
    return this.begun && typeof this.begun.data?.agent === "string" ? this.begun.data.agent : null;
  }
}

/** The names of a scope and of those around it, beginning with the run's. */
function pathOf(scope) {
  const path = [];
  for (let at = scope; at; at = at.parent) path.unshift(at.name);
  return path;
}

class Call {
  constructor(step, id, kind, name) {
    this.step = step;
    this.id = id;
    this.kind = kind; // skill or protocol
    this.name = name;
    this.span = new Span();
    this.execute = null;
    this.outcome = null;
    this.progress = [];
    this.decisions = []; // notes on the call: that it waited, the decision, that it was interrupted
    this.scope = null;
    this.first = null;
  }

  get failed() {
    return this.outcome !== null && this.outcome.type.endsWith("_error");
  }

  get ms() {
    const recorded = this.outcome?.data?.duration_ms;
    if (isNumber(recorded)) return recorded;
    return this.execute && this.outcome ? this.span.length : null;
  }
}

class Run {
  constructor(index, id) {
    this.index = index;
    this.id = id;
    this.scopes = new Map();
    this.calls = new Map();
    this.events = []; // a `run_resumed` refers to events by their index
    this.root = new Scope(this, "", null, null);
    this.scopes.set("", this.root);
  }

  get name() {
    return this.root.agent ?? `run ${this.index + 1}`;
  }

  /** The scope at a path, created if needed. The scope `2.a/0.1` was begun by step 0 of `2.a`. */
  scope(path) {
    const known = this.scopes.get(path);
    if (known) return known;
    const at = path.lastIndexOf("/");
    const parent = this.scope(at < 0 ? "" : path.slice(0, at));
    const number = /^(\d{1,9})\./.exec(path.slice(at + 1));
    const step = number ? stepOf(parent, Number(number[1])) : null;
    const made = new Scope(this, path, parent, step);
    this.scopes.set(path, made);
    const call = this.calls.get(path);
    if (call) {
      made.call = call;
      call.scope = made;
    } else (step ? step.parts : parent.lost).push(made);
    return made;
  }
}

function stepOf(scope, number) {
  let step = scope.steps.get(number);
  if (!step) {
    step = new Step(scope, number);
    scope.steps.set(number, step);
  }
  return step;
}

class Recording {
  constructor() {
    this.events = [];
    this.runs = [];
    this.types = new Map();
    this.latest = new Map();
  }

  /** Adds one record of the page's data: an entry of the recording and, for a response, its outline. */
  add(record) {
    const entry = isObject(record.entry) ? record.entry : {};
    const type = typeof entry.event === "string" ? entry.event : "unknown";
    const at = Date.parse(entry.timestamp);
    const path = typeof entry.scope === "string" ? entry.scope : "";
    const run = this.runOf(asText(entry.run_id), path, type);
    const scope = run.scope(path);
    // an input belongs to the step before it, which the recording of a resume does not have
    const isLost = type === "input_added" && !scope.steps.has(entry.step);
    const step = Number.isSafeInteger(entry.step) && !isLost ? stepOf(scope, entry.step) : null;
    const event = {
      n: this.events.length + 1, entry, outline: record.outline ?? null, type, data: entry.data,
      at: Number.isNaN(at) ? null : at, run, scope, step, problem: isProblem(type, entry.data), call: null, droppedBy: null,
    };
    this.events.push(event);
    this.types.set(type, (this.types.get(type) ?? 0) + 1);
    place(event);
    if (type === "run_resumed") dropEvents(event, run.events);
    run.events.push(event);
    return event;
  }

  /** The run of an event. Another `run_start` of a root begins a new run, even if the id is known. */
  runOf(id, path, type) {
    let run = type === "unreadable_line" ? this.runs.at(-1) : this.latest.get(id);
    if (!run || (type === "run_start" && path === "" && run.root.begun)) {
      run = new Run(this.runs.length, id);
      this.runs.push(run);
      this.latest.set(id, run);
    }
    return run;
  }
}

function isProblem(type, data) {
  if (type === "result" && isWaiting(data)) return false;
  if (type === "result") return isObject(data) && (isNotNull(data.error) || ![undefined, "final"].includes(data.stop_reason));
  return kindOf(type).problem ?? type.endsWith("_error");
}

/** Whether a result only says that the run waits for a decision. */
function isWaiting(data) {
  return data?.stop_reason === "interrupt";
}

function isNotNull(value) {
  return value !== null && value !== undefined;
}

/** Undoes the effects of events that a resume dropped (that the run was stopped, and the consequences). They stay listed. */
function dropEvents(resume, events) {
  const data = isObject(resume.data) ? resume.data : {};
  if (data.from_seq !== events.length || !Array.isArray(data.dropped)) return; // its numbers do not apply here
  resume.dropped = [];
  for (const seq of data.dropped) {
    const event = Number.isSafeInteger(seq) ? events[seq] : undefined;
    if (!event || event.droppedBy) continue;
    event.droppedBy = resume;
    event.problem = false;
    resume.dropped.push(event);
    const { scope, step, call } = event;
    if (scope.result === event) scope.result = null;
    if (call?.outcome === event) call.outcome = null;
    if (call?.execute === event) call.execute = null;
    for (const task of step?.tasks.values() ?? []) if (task.outcome === event) task.outcome = null;
  }
  for (const { scope, step } of resume.dropped) {
    for (let at = scope; at; at = at.parent) {
      at.problem = Boolean(at.result?.problem) || at.task?.outcome?.type === "task_error";
      at.version += 1;
    }
    if (!step) continue;
    step.problem = step.events.some((event) => event.problem && event.type !== "result");
    step.version += 1;
  }
}

/** Adds an event to its scope, step, call and task. */
function place(event) {
  const { scope, step, type, data } = event;
  scope.first ??= event;
  if (type === "run_start" || type === "run_resumed") scope.begun ??= event;
  if (type === "result") scope.result = event;
  if (type === "input_added") scope.result = null; // the run continues
  if (step) {
    step.first ??= event;
    step.events.push(event);
    step.problem ||= event.problem && type !== "result";
    placeInStep(event, isObject(data) ? data : {});
  }
  if (type === "result") scope.problem ||= event.problem;
  for (let at = scope, below = step; at; below = at.step, at = at.parent) {
    at.span.see(event.at);
    at.version += 1;
    for (const used of usagesOf(event)) at.usage.add(used);
    if (below) {
      below.span.see(event.at);
      below.version += 1;
    }
  }
}

/** The usage of model calls in an event, including failed calls if theirs is known. */
function usagesOf({ type, data }) {
  const { usage, problem } = kindOf(type);
  if (!usage) return [];
  const counts = isObject(data) ? data : {};
  const known = isNumber(counts.prompt_tokens) || isNumber(counts.completion_tokens) || isNumber(counts.cost);
  if (problem && !known) return [];
  return isObject(counts.given_up) ? [counts, counts.given_up] : [counts];
}

function placeInStep(event, data) {
  const { step, type, scope } = event;
  if (kindOf(type).of_call) {
    const known = event.run.calls.get(asText(data.call_id)); // none if it is a model call
    event.call = known ?? null;
    known?.decisions.push(event);
    return;
  }
  const [kind, , ending] = /^(skill|protocol|task)_(execute|start|result|complete|error)$/.exec(type) ?? [];
  for (const used of usagesOf(event)) step.usage.add(used);
  if (kind === undefined && type !== "progress") return;
  else if (type.startsWith("task_")) placeTask(event, data);
  else {
    const call = callOf(event, data);
    event.call = call;
    if (type === "progress") call.progress.push(event);
    else if (ending === "execute") call.execute = event;
    else call.outcome = event;
    call.span.see(event.at);
    if (call.scope) call.scope.span.see(event.at);
    scope.version += 1;
  }
}

function callOf(event, data) {
  const { step, run, type } = event;
  const id = typeof data.call_id === "string" ? data.call_id : `#${event.n}`;
  const known = run.calls.get(id);
  if (known) return known;
  const kind = type.startsWith("protocol") ? "protocol" : "skill";
  const name = typeof data[kind] === "string" ? data[kind] : id;
  const call = new Call(step, id, kind, name);
  call.key = `${run.index}.${run.calls.size}`;
  call.first = event;
  run.calls.set(id, call);
  step.calls.push(call);
  const index = /(?:^|\/)(\d{1,9})\.(\d{1,9})$/.exec(id);
  if (index && Number(index[1]) === step.number) step.callAt.set(Number(index[2]), call);
  step.parts.push(call);
  return call;
}

function placeTask(event, data) {
  const { step, scope, run, type } = event;
  const id = asText(data.task_id);
  let task = step.tasks.get(id);
  if (!task) {
    const escaped = id.replaceAll("%", "%25").replaceAll("/", "%2F");
    const path = `${scope.path}${scope.path ? "/" : ""}${step.number}.${escaped}`;
    task = { id, outcome: null, scope: null };
    step.tasks.set(id, task);
    task.scope = run.scope(path);
    task.scope.task = task;
    task.scope.first ??= event;
  }
  if (type !== "task_start") task.outcome = event;
  if (type === "task_error") task.scope.problem = true;
  task.scope.span.see(event.at);
  task.scope.version += 1;
}
