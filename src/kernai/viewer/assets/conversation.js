// The conversation of a scope: what was sent, what the model wrote, and each block with its outcome.

/** The items of these scopes' conversations, one conversation after the other. */
function conversationItems(scopes) {
  const items = [];
  for (const scope of scopes) {
    if (scopes.length > 1) {
      items.push({ key: `h${scope.key}`, version: Math.min(2, view.recording.runs.length), kind: "heading", scope, events: [] });
    }
    scopeItems(scope, items);
  }
  return items;
}

function scopeItems(scope, items) {
  const before = items.length;
  if (scope.parent === null && (scope.result || scope.steps.size > 0)) items.push(answerOf(scope));
  let last = null;
  const added = new Map(); // inputs that are shown already, and how often
  for (const step of scope.steps.values()) {
    for (const event of step.events) if (event.type === "messages_sent") messageItems(event, last, items, added);
    const events = step.events.filter((one) => one.type !== "messages_sent"); // those are shown as messages
    last = { key: `s${step.key}`, version: step.version, kind: "step", step, events, reads: [] };
    last.written = new Set(step.events.filter((one) => one.type === "llm_response").map((one) => one.data?.content));
    items.push(last);
    for (const event of step.events) if (event.type === "input_added") inputItem(event, items, added);
  }
  if (scope.result) items.push({ key: `r${scope.key}`, version: 0, kind: "end", scope, events: [scope.result] });
  if (items.length === before && scope.first) {
    items.push({ key: `n${scope.key}`, version: 0, kind: "nothing", scope, events: [] });
  }
}

/** How a run ended, above its steps. Present from the start, so that nothing moves when the run ends. */
function answerOf(scope) {
  const event = scope.result;
  const text = event ? describe(event).text : "";
  return { key: `a${scope.key}`, version: event?.n ?? 0, kind: "answer", scope, events: event ? [event] : [], text };
}

/** The message with which the user continued a run that had ended. The next model call sends it. */
function inputItem(event, items, added) {
  const content = event.data?.input;
  const text = partsText(content);
  added.set(text, (added.get(text) ?? 0) + 1);
  items.push({ key: `i${event.n}`, version: 0, kind: "message", role: "user", content, event, events: [], text });
}

/** The messages that a model call sends for the first time. Those of the runtime are added to the step that they answer. */
function messageItems(event, last, items, added) {
  const messages = Array.isArray(event.data) ? event.data : [];
  messages.forEach((message, at) => {
    const { role, content } = isObject(message) ? message : { role: "unknown", content: message };
    if (last && role === "assistant" && last.written.has(content)) return;
    const text = partsText(content);
    if (role === "user" && added.get(text) > 0) {
      added.set(text, added.get(text) - 1); // `inputItem` has shown it already
      return;
    }
    if (last && role === "user") {
      last.reads.push({ event, content });
      last.version += 1;
      return;
    }
    items.push({
      key: `m${event.n}.${at}`, version: 0, kind: "message", role: asText(role), content, event,
      events: [], text: partsText(content),
    });
  });
}

function itemMatches(item) {
  if (item.text !== undefined) return isFound(item.text);
  return item.events.some(matches) || (item.reads ?? []).some(({ content }) => isFound(partsText(content)));
}

function isFound(text) {
  if (!search.pattern) return false;
  search.pattern.lastIndex = 0;
  return search.pattern.test(text);
}

function itemHasProblem(item) {
  if (item.kind === "step") return item.step.problem;
  return item.events.some((event) => event.problem);
}

const DRAW = { heading: headingItem, answer: answerItem, message: messageItem, step: stepItem, end: endItem, nothing: nothingItem };

function conversationCard(item) {
  const card = DRAW[item.kind](item);
  card.id = `c-${item.key}`;
  card.tabIndex = -1;
  return card;
}

function headingItem({ scope }) {
  // a run whose agent has no name is called by its number anyway
  const number = view.recording.runs.length > 1 && scope.run.root.agent !== null ? ` ${scope.run.index + 1}` : "";
  const kind = scope.parent === null ? `Run${number}` : scope.task ? "Task" : "Sub-agent";
  return el("article", { class: "divider", "aria-label": `${kind} ${visible(clip(scope.name))}` },
    el("h2", null, el("span", { class: "kind" }, kind), " ", span(null, pathOf(scope).join(" › "))));
}

const ROLE = { system: "System", user: "User", assistant: "Assistant" };

function messageItem({ role, content, event }) {
  const name = Object.hasOwn(ROLE, role) ? ROLE[role] : clip(role);
  const card = el("article", { class: `card turn ${Object.hasOwn(ROLE, role) ? role : "other"}`, "aria-label": `${visible(name)} message` });
  const text = partsText(content);
  const [toggle, shown] = role === "system" ? folded(text) : [null, textBlock(text, "text prose")];
  card.append(el("header", null, el("h3", null, write(el("span"), name)), toggle, linkTo(event.n)), shown);
  const media = mediaBlock(content);
  if (media) card.append(media);
  return card;
}

/** The system message, folded because it is long and the same in most runs, unless the search finds something in it. */
function folded(text) {
  const [toggle, holder] = disclosure(counted(text.length, "character"), "Show or hide the system message", () => [textBlock(text, "text prose")]);
  if (isFound(text)) openByItself(toggle, holder);
  return [toggle, holder];
}

function openByItself(toggle, holder) {
  toggle.click();
  delete holder.dataset.open; // the reader did not open it, so the list may discard the card
}

function answerItem({ scope }) {
  const event = scope.result;
  if (!event) {
    const shown = view.live ? "No answer yet" : "No answer: the end of the run is not on record";
    return el("article", { class: "card outcome-first open", "aria-label": shown }, el("p", { class: "note" }, shown));
  }
  const shown = describe(event);
  const waits = isWaiting(event.data);
  const title = isNotNull(event.data?.text) ? "Answer" : waits ? "Waits for a decision" : "No answer";
  const card = el("article", { class: `card outcome-first${event.problem ? " bad" : ""}`, "aria-label": title });
  card.append(el("header", null, el("h3", null, title), facts(shown.facts), linkTo(event.n)));
  if (shown.text) card.append(textBlock(shown.text, "text prose"));
  return card;
}

function nothingItem({ scope }) {
  return el("article", { class: "card" },
    el("p", { class: "note" }, "Nothing was said here: the events of this scope are in the list of events. "),
    linkTo(scope.first.n, "To its first event"));
}

function endItem({ scope }) {
  const event = scope.result;
  const shown = describe(event);
  const card = el("article", { class: `card end ${event.problem ? "bad" : ""}`, "aria-label": shown.title });
  card.append(el("header", null, el("h3", null, shown.title), facts(shown.facts), linkTo(event.n)));
  if (event.problem && shown.text) card.append(textBlock(shown.text));
  return card;
}

function stepItem(item) {
  const { step } = item;
  const responses = step.events.filter((event) => event.type === "llm_response");
  const shown = responses.length > 0 ? [duration(sumOf(responses, "latency_ms"))] : [];
  if (step.usage.calls > 0) shown.push(step.usage.tokens(), step.usage.money());
  for (const { data } of responses) if (isNotNull(data?.model)) shown.push(answeredBy(data));
  const card = el("article", { class: `card step${step.problem ? " bad" : ""}`, "aria-label": `Step ${step.number}` });
  const first = responses[0] ?? step.first;
  card.append(el("header", null, el("h3", null, `Step ${step.number}`), facts(shown), first ? linkTo(first.n) : null));
  const drawn = new StepDrawing(step, card);
  for (const event of step.events) if (event.type === "run_resumed" && event.n < (responses[0]?.n ?? 0)) drawn.drawResume(event);
  for (const event of responses) drawn.response(event);
  if (responses.length === 0 && !drawn.workflow) card.append(el("p", { class: "note" }, "No response of the model is on record."));
  drawn.rest();
  if (item.reads.length > 0) card.append(readsBlock(item.reads, drawn.corrected));
  return card;
}

function sumOf(events, field) {
  const known = events.map((event) => event.data?.[field]).filter(isNumber);
  return known.length > 0 ? known.reduce((one, other) => one + other, 0) : null;
}

/** What the runtime wrote back: open if it is a correction, folded if it repeats the results above. */
function readsBlock(reads, open) {
  const label = `What the model reads next: ${counted(reads.length, "message")}`;
  const [toggle, holder] = disclosure(label, label, () => reads.flatMap(({ event, content }) => [
    el("div", { class: "read" }, linkTo(event.n), textBlock(partsText(content), "text prose"), mediaBlock(content)),
  ]));
  if (open || reads.some(({ content }) => isFound(partsText(content)))) openByItself(toggle, holder);
  return el("div", { class: "reads" }, toggle, holder);
}
