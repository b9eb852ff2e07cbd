// Title, facts and text of each type of event. An unknown type is shown with its name and its data.

/** A value as text: a string unchanged, anything else as JSON. */
function asText(value) {
  if (typeof value === "string") return value;
  if (value === null || value === undefined) return "";
  return JSON.stringify(value, null, 2);
}

/** The text of an input, result or message, which may contain media references and texts from outside. */
function partsText(value) {
  if (!Array.isArray(value)) return asText(value);
  return value.map((part) => (isReference(part) ? `[${part.kind} ${part.id}]` : asText(part?.outside ?? part))).join("\n");
}

const MEDIA_ID = /^media_[0-9a-f]{12}$/;

function isReference(value) {
  return isObject(value) && typeof value.id === "string" && MEDIA_ID.test(value.id) && typeof value.kind === "string";
}

const MOST_NODES = 5000;
const MOST_MEDIA = 24;

/** The media that a value refers to, without duplicates. */
function mediaIn(value) {
  const found = new Map();
  const open = [value];
  for (let seen = 0; open.length > 0 && seen < MOST_NODES && found.size < MOST_MEDIA; seen++) {
    const one = open.pop();
    if (isReference(one)) found.set(one.id, one);
    else if (Array.isArray(one)) for (let at = Math.min(one.length, MOST_NODES) - 1; at >= 0; at--) open.push(one[at]);
    else if (isObject(one)) open.push(...Object.values(one).slice(0, 100));
  }
  return [...found.values()];
}

function messagesSent(data) {
  if (!Array.isArray(data)) return {};
  return {
    facts: [`${count(data.length)} new`],
    text: data.map((one) => (isObject(one) ? `${asText(one.role)}: ${partsText(one.content)}` : asText(one))).join("\n\n"),
  };
}

/** The model that responded, if it is not the run's. */
const answeredBy = (data) => `by ${asText(data.model)}`;

function llmResponse(data) {
  const usage = new Usage();
  usage.add(data);
  const facts = [duration(data.latency_ms), usage.tokens(), usage.money()];
  if (isNotNull(data.finish_reason)) facts.push(`finish ${asText(data.finish_reason)}`);
  if (isNotNull(data.model)) facts.push(answeredBy(data));
  return { facts, text: asText(data.content) };
}

function blocksParsed(data) {
  const blocks = Array.isArray(data) ? data.filter(isObject) : [];
  const shown = (block) => `${asText(block.type)}${isNotNull(block.name) ? ` ${asText(block.name)}` : ""}`;
  return { facts: [counted(blocks.length, "block")], text: blocks.map(shown).join(", ") };
}

function ended(data, scope) {
  const usage = isObject(data.usage) ? data.usage : {};
  const facts = [isNotNull(data.stop_reason) ? asText(data.stop_reason) : `stop reason ${UNKNOWN}`];
  if (isNumber(data.steps)) facts.push(counted(data.steps, "step"));
  const sum = new Usage();
  sum.add(usage);
  // the recorded sums leave out what is unknown
  for (const part of ["prompt", "completion", "cost"]) sum[part].unknown ||= scope.usage[part].unknown;
  facts.push(sum.tokens(), sum.money(), data.truncated === true && "cut off", ...noted(data));
  return { facts, text: isNotNull(data.error) ? asText(data.error) : partsText(data.text) };
}

function took(data) {
  return isNumber(data.duration_ms) ? [duration(data.duration_ms)] : [];
}

function tasksOf(data) {
  const tasks = Array.isArray(data.tasks) ? data.tasks.filter(isObject) : [];
  const needs = (task) => (Array.isArray(task.depends_on) && task.depends_on.length ? ` (after ${task.depends_on.map(asText).join(", ")})` : "");
  return tasks.map((task) => `${asText(task.id)}${needs(task)}: ${asText(task.input)}`).join("\n");
}

const NAMES = (data) => asText(data.skill ?? data.protocol ?? data.command ?? data.name ?? data.type ?? "");

/** What was repaired in a call or an answer, and what was left out of a call. */
const noted = (data) => ["repaired", "dropped"].filter((name) => Array.isArray(data[name]))
  .map((name) => `${name}: ${data[name].map(asText).join(", ")}`);

const isRefusal = (decision) => decision === false || typeof decision === "string";
const isWoken = (decision) => isObject(decision) && decision.woken === true;

function decided(data) {
  if (isWoken(data.decision)) return "is woken: nobody decided in time";
  const by = isNotNull(data.by) ? ` by ${asText(data.by)}` : "";
  const changed = isObject(data.decision) ? " with other parameters" : "";
  return `${isRefusal(data.decision) ? "refused" : "approved"}${by}${changed}`;
}

function afterLoss(data) {
  if (data.decision === "retry") return "It is called again.";
  const read = isNotNull(data.reason) ? `why: ${asText(data.reason)}` : "that its outcome is unknown.";
  return data.decision === "skip" ? `It is not called again; the model reads ${read}` : "";
}

const why = (decision) => (typeof decision === "boolean" || isWoken(decision) ? "" : asText(isObject(decision) ? decision.params : decision));

/** The time since the previous event of the run. */
function gapBefore(event) {
  const before = event.run.events.findLast((one) => one.n < event.n && one.at !== null);
  return before && event.at !== null ? `${duration(event.at - before.at)} later` : "";
}

function leftOut(data) {
  const number = Array.isArray(data.dropped) ? data.dropped.length : 0;
  return number ? `${counted(number, "event")} left out` : "";
}

const DESCRIBE = {
  run_start: (data, event) => ({
    title: event.scope.parent ? "Sub-run begins" : "Run begins",
    facts: [data.agent, data.model].filter(isNotNull).map(asText), text: partsText(data.input),
  }),
  messages_sent: (data, event) => ({ title: "Sent to the model", ...messagesSent(event.data) }),
  llm_response: (data) => ({ title: "Model answers", ...llmResponse(data) }),
  blocks_parsed: (data, event) => ({ title: "Blocks", ...blocksParsed(event.data) }),
  skill_execute: (data) => ({ title: `Calls ${NAMES(data)}`, facts: noted(data), text: asText(data.params) }),
  protocol_execute: (data) => ({ title: `Asks ${NAMES(data)}`, text: asText(data.request) }),
  skill_result: (data) => ({ title: `${NAMES(data)} gives`, facts: took(data), text: partsText(data.result) }),
  protocol_result: (data) => ({
    title: `${NAMES(data)} gives`, facts: took(data),
    text: partsText(isObject(data.result) && "content" in data.result ? data.result.content : data.result),
  }),
  builtin_result: (data) => ({ title: `${NAMES(data)} gives`, text: asText(data.result) }),
  skill_error: (data) => ({ title: `${NAMES(data) || "Call"} fails`, facts: took(data), text: asText(data.error) }),
  protocol_error: (data) => ({ title: `${NAMES(data)} fails`, facts: took(data), text: asText(data.error) }),
  builtin_error: (data) => ({ title: `${NAMES(data)} fails`, text: asText(data.error) }),
  progress: (data) => ({ title: "Progress", text: asText(data.data) }),
  workflow_start: (data) => ({
    title: "Workflow begins", facts: [asText(data.strategy)].filter(Boolean),
    text: [asText(data.goal), tasksOf(data)].filter(Boolean).join("\n\n"),
  }),
  workflow_complete: (data) => ({ title: "Workflow ends", facts: took(data), text: asText(data.results) }),
  workflow_error: (data) => ({ title: "Workflow fails", facts: took(data), text: asText(data.error) }),
  task_start: (data) => ({ title: `Task ${asText(data.task_id)} begins`, text: asText(data.input) }),
  task_complete: (data) => ({ title: `Task ${asText(data.task_id)} ends`, facts: took(data), text: asText(data.result) }),
  task_error: (data) => ({ title: `Task ${asText(data.task_id)} fails`, facts: took(data), text: asText(data.error) }),
  plan_rejected: (data) => ({ title: "Plan not run", facts: [asText(data.reason)], text: asText(data.raw) }),
  block_incomplete: (data) => ({ title: `Block ${asText(data.type)} is not closed`, text: asText(data.content) }),
  forged_block: (data) => ({ title: `The model wrote a ${asText(data.type)} itself: ignored`, text: asText(data.content) }),
  quoted_call: (data) => ({
    title: `${NAMES(data)} did not count: quoted`, facts: [asText(data.type)], text: `it is in ${asText(data.source)}`,
  }),
  dialect_call: (data) => ({ title: `${NAMES(data) || "Answer"} in another format`, facts: [asText(data.dialect)] }),
  informational_only: (data) => ({ title: "Only blocks that run nothing", text: partsText(data.kinds) }),
  no_blocks_stall: (data) => ({ title: "Prose where a block was needed", text: asText(data.prose_preview) }),
  stray_close: (data) => ({ title: "Answer that contains its closing tag", text: asText(data.text) }),
  answer_rejected: (data) => ({ title: "Answer of another type", text: asText(data.error) }),
  model_restarted: (data) => ({ title: "Model started over", text: asText(data.reason) }),
  model_failed: (data) => ({
    title: "Model call fails", facts: [asText(data.exception)].filter(Boolean),
    text: [asText(data.error), asText(data.content)].filter(Boolean).join("\n\n"),
  }),
  approval_requested: (data) => ({
    title: `Call ${asText(data.call_id)} waits for a decision`, facts: [NAMES(data) || "the model"],
    text: [asText(data.reason), asText(data.params)].filter(Boolean).join("\n\n"),
  }),
  untrusted_value: (data) => ({
    title: data.path ? `${asText(data.path)} is not in the user's words` : "Acts on others after text from outside was read",
    facts: [asText(data.skill)], text: asText(data.source),
  }),
  trusted_values: (data) => ({
    title: "Brought in by the user or the host", facts: [asText(data.skill)],
    text: Object.entries(isObject(data.sources) ? data.sources : {}).map(([path, source]) => `${path} is in ${asText(source)}`).join("\n"),
  }),
  trust_added: (data) => ({
    title: data.by === "instructions" ? "Instructions count as trusted" : "The host trusts more values",
    text: (Array.isArray(data.texts) ? data.texts : []).map(asText).join("\n\n"),
  }),
  approval_given: (data) => ({ title: `Call ${asText(data.call_id)} ${decided(data)}`, text: why(data.decision) }),
  in_flight: (data) => ({
    title: `Call ${asText(data.call_id)} was running when the run was interrupted`, facts: [asText(data.decision)],
    text: [afterLoss(data), isNotNull(data.by) && `Decided by ${asText(data.by)}.`].filter(Boolean).join("\n"),
  }),
  run_resumed: (data, event) => ({
    title: "The run continues here", facts: [gapBefore(event), leftOut(data)].filter(Boolean),
  }),
  input_added: (data) => ({ title: "The user continues", text: partsText(data.input) }),
  context_saved: (data, event) => ({ title: "Context saved", text: asText(event.data) }),
  unreadable_line: (data) => ({ title: `Line ${asText(data.line)} cannot be read`, facts: [asText(data.reason)], text: asText(data.text) }),
  final: (data, event) => ({ title: "Answer", text: asText(event.data) }),
  plan: (data, event) => ({ title: "Plan", text: asText(event.data) }),
  json: (data, event) => ({ title: "JSON", text: asText(event.data) }),
  result: (data, event) => ({ title: endTitle(event.scope, data), ...ended(data, event.scope) }),
};

function endTitle(scope, data) {
  if (isWaiting(data)) return "Run waits for a decision";
  return scope.parent ? "Sub-run ends" : "Run ends";
}

/** Title, facts and text of an event. */
function describe(event) {
  const known = Object.hasOwn(DESCRIBE, event.type) ? DESCRIBE[event.type] : null;
  const shown = known ? known(isObject(event.data) ? event.data : {}, event) : {};
  return {
    title: clip(shown.title || event.type.replaceAll("_", " ")),
    facts: shown.facts ?? [],
    text: shown.text || (known && isObject(event.data) ? "" : asText(event.data)),
  };
}

/** All text of an event, for the search: the values in its data, and the keys of nested objects. */
function haystack(event) {
  if (event.haystack === undefined) {
    const texts = [event.type, `#e${event.n}`, event.scope.path];
    const open = isObject(event.data) ? Object.values(event.data).reverse() : [event.data];
    while (open.length > 0) {
      const one = open.pop();
      if (Array.isArray(one)) for (let at = one.length - 1; at >= 0; at--) open.push(one[at]);
      else if (isObject(one)) for (const [key, value] of Object.entries(one).reverse()) open.push(value, key);
      else if (isNotNull(one)) texts.push(String(one));
    }
    event.haystack = texts.join("\n");
  }
  return event.haystack;
}

function matches(event) {
  if (event.searched !== search.pattern) {
    event.searched = search.pattern;
    search.pattern.lastIndex = 0;
    event.found = search.pattern.test(haystack(event));
  }
  return event.found;
}
