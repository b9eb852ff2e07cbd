// The tree of runs, steps, calls and sub-runs, each with its bar on a common time line. All runs of a file begin at the
// left edge, so that they can be compared; concurrent work is stacked.

const TICK = 64; // pixels per tick of the axis, at least
const MOST_BARS = 300; // in one row; more could not be distinguished
const MOST_FIGURE = 12; // characters that fit into a column of figures
const DIGIT = 0.95; // width of a figure's digit relative to other digits in the row
const MOST_NAME = 340; // pixels; the column of names is never wider
const INDENT = 12; // pixels for each level
const LETTER = 7.8; // pixels; approximate width of a letter in a name
const MARK = 16; // pixels; width of a sign after a name
const BESIDE_NAME = 46; // pixels around a name

const PATH = 28; // pixels; height of the line with the ancestors of the first visible row
const MOST_CRUMBS = 6; // ancestors in that line

const COLUMNS = ["tokens", "cost", "time"];

class Timeline {
  constructor(scroller, host, axis) {
    this.host = host;
    this.axis = axis;
    this.list = new List(scroller, host, (row) => this.draw(row), 30, false);
    this.closed = new Set();
    this.selected = null;
    this.zoom = null; // {run, from, to}, milliseconds from the run's start
    this.rows = [];
    this.lasts = []; // index of the last row at each level
    this.path = document.getElementById("path");
    this.plot = new Plot(document.getElementById("plot"));
    scroller.addEventListener("scroll", () => this.drawPath(), { passive: true });
    host.addEventListener("keydown", (event) => this.onKey(event));
    host.addEventListener("click", (event) => this.onClick(event));
    addEventListener("resize", () => this.drawAxis());
    host.addEventListener("dblclick", (event) => this.setZoom(event.target.closest(".row")?.row ?? null));
  }

  /** Builds all rows again. Rows that are drawn and have not changed keep their elements. */
  refresh() {
    const { runs } = view.recording;
    this.whole = runs.reduce((most, run) => Math.max(most, run.root.span.length ?? 0), 1);
    this.range = this.zoom ?? { from: 0, to: this.whole };
    this.rows = [];
    const { where } = view.filters;
    const roots = (where instanceof Scope ? [where] : (where ? [where] : runs).map((run) => run.root)).filter(isShown);
    roots.forEach((scope, at) => this.scopeRow(scope, 1, at + 1, roots.length));
    if (!this.rows.some((row) => row.key === this.selected)) this.selected = this.rows[0]?.key ?? null;
    for (const row of this.rows) row.version = this.versionOf(row);
    this.measure();
    this.list.set(this.rows);
    this.drawAxis();
    this.plot.refresh(roots);
    this.markInPlot();
    this.drawPath();
  }

  markInPlot() {
    const of = this.rows[this.list.index.get(this.selected)]?.of;
    this.plot.mark(of instanceof Call ? of.step : of);
  }

  /** Shows the ancestors of the first visible row in a line above it. */
  drawPath() {
    const edge = this.axis.getBoundingClientRect().bottom + 4;
    const path = [];
    if ((this.rows[this.list.top(edge)]?.up ?? null) !== null) { // a run's row has no ancestors and is not covered
      for (let { up } = this.rows[this.list.top(edge + PATH)]; up !== null; up = this.rows[up].up) path.unshift(this.rows[up]);
    }
    const near = path.slice(-MOST_CRUMBS).map((row) => [row.key, visible(nameOf(row).name)]);
    const shown = JSON.stringify(near);
    if (shown === this.path.dataset.shown) return;
    this.path.dataset.shown = shown;
    this.path.hidden = near.length === 0;
    this.path.replaceChildren(...near.flatMap(([key, name], at) => [
      at > 0 ? "›" : path.length > near.length ? "… ›" : "",
      button(name, `To ${name}`, () => this.select({ key }, true)),
    ]));
  }

  versionOf({ of, open, key, size }) {
    return [of.version ?? of.step.version, open, key === this.selected, size, this.range.from, this.range.to].join();
  }

  /** Sets the widths of the columns from the longest name and figures, because each row is a grid of its own. */
  measure() {
    const most = COLUMNS.map((name) => name.length);
    let names = 0;
    for (const row of this.rows) {
      const { name, marks } = nameOf(row);
      names = Math.max(names, levelOf(row.level) * INDENT + Math.min(name.length, 100) * LETTER + marks.length * MARK);
      figures(row).forEach(({ text }, at) => { most[at] = Math.max(most[at], text.length); });
    }
    const { style } = this.host.parentElement;
    style.setProperty("--names", `${Math.min(MOST_NAME, Math.ceil(names + BESIDE_NAME))}px`);
    COLUMNS.forEach((name, at) => style.setProperty(`--${name}`, `${Math.min(most[at], MOST_FIGURE) * DIGIT}ch`));
  }

  add(key, of, kind, level, place, children) {
    const open = children.length > 0 ? !this.closed.has(key) : null;
    this.lasts[level] = this.rows.length;
    this.rows.push({ key, of, kind, level, up: this.lasts[level - 1] ?? null, at: place[0], size: place[1], open });
    if (open) children.forEach((child, at) => child(level + 1, at + 1, children.length));
  }

  scopeRow(scope, level, ...place) {
    this.add(`s${scope.key}`, scope, scope.parent === null ? "run" : scope.task ? "task" : "agent", level, place,
      this.below(scope));
  }

  /** The rows below a scope: its steps, and sub-runs whose step is not recorded. */
  below(scope) {
    return scope === null ? [] : [
      ...[...scope.steps.values()].filter(isShown).map((step) => (...place) => this.stepRow(step, ...place)),
      ...scope.lost.filter(isShown).map((one) => (...place) => this.scopeRow(one, ...place)),
    ];
  }

  stepRow(step, level, ...place) {
    const call = onlyCall(step);
    const children = call ? this.below(call.scope) : step.parts.filter(isShown).map((part) => (...at) => {
      if (part instanceof Scope) this.scopeRow(part, ...at);
      else this.callRow(part, ...at);
    });
    this.add(`t${step.key}`, step, "step", level, place, children);
  }

  callRow(call, level, ...place) {
    this.add(`c${call.key}`, call, call.kind, level, place, this.below(call.scope));
  }

  draw(row) {
    const { of, kind, level, open } = row;
    const run = runOf(of);
    const { name, bad, call, marks } = nameOf(row);
    const ms = timeOf(row);
    const usage = usageOf(row);
    const used = usage?.calls ? usage.summary() : "";
    const became = call ? outcomeInWords(call) : "";
    const element = el("div", {
      id: `row-${row.key}`, role: "treeitem", class: `row ${kind}${bad ? " bad" : ""}`, "aria-level": level,
      "aria-posinset": row.at, "aria-setsize": row.size, "aria-expanded": open === null ? null : String(open),
      "aria-selected": String(row.key === this.selected), tabindex: row.key === this.selected ? 0 : -1,
      "aria-label": visible([name, became, bad ? "with a problem" : "", duration(ms), used].filter(Boolean).join(", ")),
      title: visible([name, used, became].filter(Boolean).join("\n")),
    });
    const label = el("span", { class: "label" },
      el("span", { class: "twisty", "aria-hidden": "true" }, open === null ? "" : open ? "▾" : "▸"),
      el("span", { class: "dot", "aria-hidden": "true" }), write(el("span", { class: "name" }), name));
    label.style.setProperty("--level", levelOf(level));
    for (const mark of marks) label.append(el("span", { class: mark === "!" ? "flag" : "became", "aria-hidden": "true" }, mark));
    element.append(label, this.track(of, kind, run), ...figures(row).map(({ text, title }) =>
      el("span", { class: `figure${title === UNKNOWN ? " unknown" : ""}`, title }, text)));
    element.row = row;
    return element;
  }

  track(of, kind, run) {
    const track = el("span", { class: "track", "aria-hidden": "true" });
    this.bar(track, of.span, run, `bar ${kind}${(of.problem ?? of.failed) && kind !== "step" ? " bad" : ""}`);
    if (kind !== "step") {
      this.waits(track, of.decisions ?? [], run);
      return track;
    }
    let sent = null;
    for (const event of of.events) {
      if (track.childElementCount > MOST_BARS) return track;
      if (event.type === "messages_sent") sent = event.at;
      if (event.type === "llm_response" && sent !== null) this.bar(track, { start: sent, end: event.at }, run, "bar model");
    }
    for (const call of of.calls.slice(0, MOST_BARS)) this.bar(track, call.span, run, `bar ${call.kind}${call.failed ? " bad" : ""}`);
    this.waits(track, of.events, run);
    return track;
  }

  /** Draws a bar from each request for a decision to the decision. Without a decision, the bar has no length. */
  waits(track, events, run) {
    const asked = new Map();
    for (const { type, data, at } of events) {
      if (track.childElementCount > MOST_BARS) return;
      const call = asText(data?.call_id);
      if (type === "approval_requested") asked.set(call, at);
      else if (type === "approval_given" && asked.has(call)) {
        this.bar(track, { start: asked.get(call), end: at }, run, "bar wait");
        asked.delete(call);
      }
    }
    for (const at of asked.values()) this.bar(track, { start: at, end: at }, run, "bar wait");
  }

  bar(track, span, run, className) {
    const zero = run.root.span.start;
    if (span.start === null || span.end === null || zero === null) return;
    const { from, to } = this.range;
    const place = (at) => ((at - zero - from) / (to - from)) * 100;
    const left = Math.max(0, place(span.start));
    const right = Math.min(100, place(span.end));
    if (right < 0 || left > 100) return;
    const bar = el("span", { class: className });
    bar.style.setProperty("left", `${Math.min(left, 99.5)}%`);
    bar.style.setProperty("width", `${Math.max(0, right - left)}%`);
    track.append(bar);
  }

  drawAxis() {
    const { from, to } = this.range;
    const ticks = el("span", { class: "ticks" });
    const room = this.axis.querySelector(".ticks")?.clientWidth || 200;
    const rough = (to - from) / Math.max(1, room / TICK);
    const size = 10 ** Math.floor(Math.log10(rough));
    const width = Math.max(1, [1, 2, 5, 10].map((one) => one * size).find((one) => one >= rough));
    const last = to - ((to - from) * TICK * 0.7) / room;
    const first = Math.ceil(from / width);
    // multiplied instead of summed up: adding `width` to a very large time may not change it
    for (let number = 0; number * TICK <= room && (first + number) * width <= last; number++) {
      const at = (first + number) * width;
      const tick = el("span", { class: "tick" }, tickText(at));
      tick.style.setProperty("left", `${((at - from) / (to - from)) * 100}%`);
      ticks.append(tick);
    }
    const names = COLUMNS.map((name) => el("span", { class: "figure" }, name));
    const reset = this.zoom ? button("Whole run", "Show the whole run again", () => this.setZoom(null)) : el("span", null, "what");
    const measured = this.axis.childElementCount > 0;
    this.axis.replaceChildren(reset, ticks, ...names);
    if (!measured) this.drawAxis(); // again, now that `room` can be measured
  }

  setZoom(row) {
    const span = row?.of.span;
    const zero = row ? runOf(row.of).root.span.start : null;
    this.zoom = span && span.start !== null ? { from: span.start - zero, to: Math.max(span.end - zero, span.start - zero + 1) } : null;
    this.refresh();
  }

  select({ key }, focus) {
    const { index } = this.list;
    if (!index.has(key)) return; // hidden by filters
    const changed = [this.selected, key].filter((one) => index.has(one));
    this.selected = key;
    for (const one of changed) {
      const row = this.rows[index.get(one)];
      this.list.replace(index.get(one), { ...row, version: this.versionOf(row) });
    }
    this.markInPlot();
    const element = this.list.reveal(index.get(key), "nearest");
    if (focus) element?.focus({ preventScroll: true });
  }

  /** Selects the row of a step, call or scope, and opens its ancestors. */
  follow(of) {
    let opened = false;
    for (let at = above(of); at; at = above(at)) opened = this.closed.delete(rowKey(at)) || opened;
    if (opened) this.refresh();
    this.select({ key: rowKey(of) }, false);
  }

  focus() {
    this.list.element(this.list.index.get(this.selected) ?? 0)?.focus();
  }

  toggle(row) {
    if (row.open === null) return;
    if (row.open) this.closed.add(row.key);
    else this.closed.delete(row.key);
    this.refresh();
    this.select(row, true);
  }

  onClick(event) {
    const row = event.target.closest(".row")?.row;
    if (!row) return;
    if (event.target.closest(".twisty")) this.toggle(row);
    else {
      this.select(row, true);
      view.show(row);
    }
  }

  onKey(event) {
    const at = this.rows.findIndex((row) => row.key === this.selected);
    const row = this.rows[at];
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const go = (to) => this.rows[to] && this.select(this.rows[to], true);
    const act = {
      ArrowDown: () => go(at + 1), ArrowUp: () => go(at - 1), Home: () => go(0), End: () => go(this.rows.length - 1),
      PageDown: () => go(Math.min(this.rows.length - 1, at + 15)), PageUp: () => go(Math.max(0, at - 15)),
      ArrowRight: () => (row.open === false ? this.toggle(row) : go(row.open ? at + 1 : at)),
      ArrowLeft: () => (row.open ? this.toggle(row) : go(row.up ?? at)),
      Enter: () => view.show(row), " ": () => view.show(row),
      z: () => (this.zoom ? this.setZoom(null) : this.setZoom(row)),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }
}

/** Whether a row passes the filter for errors. If that is on, something in the row must have gone wrong. */
function isShown(of) {
  return !view.filters.errors || wentWrong(of);
}

function wentWrong(of) {
  if (of.problem || of.failed) return true;
  if (of instanceof Scope) return [...of.steps.values(), ...of.lost].some(wentWrong);
  return of instanceof Step ? of.parts.some(wentWrong) : of.scope !== null && wentWrong(of.scope);
}

/** The call of a step without other parts. The two share a row. */
function onlyCall(step) {
  return step.parts.length === 1 && step.parts[0] instanceof Call ? step.parts[0] : null;
}

/** The key of the row that shows a step, a call or a scope. */
function rowKey(of) {
  if (of instanceof Scope) return of.call ? rowKey(of.call) : `s${of.key}`;
  if (of instanceof Step) return `t${of.key}`;
  return onlyCall(of.step) ? rowKey(of.step) : `c${of.key}`;
}

function above(of) {
  if (of instanceof Scope) return of.call ? of.call.step : of.step ?? of.parent;
  return of instanceof Step ? of.scope : of.step;
}

/** A time without trailing zeros after the decimal point. */
function tickText(at) {
  return at === 0 ? "0" : clock(at).replace(/(\.\d*?)0+(?= s)/, "$1").replace(". s", " s");
}

function runOf(of) {
  return of.run ?? of.scope?.run ?? of.step.scope.run;
}

const isCall = ({ kind }) => kind === "skill" || kind === "protocol";

/** A row's name, and the signs after it: the outcome of a call that shares its step's row, and "!" for a problem. */
function nameOf({ of, kind }) {
  const bad = of.problem ?? of.failed;
  const call = kind === "step" ? onlyCall(of) : null;
  const marks = call && !call.failed ? [call.outcome ? "✓" : "…"] : [];
  if (bad) marks.push("!");
  const name = kind === "step" ? `Step ${of.number}${call ? ` · ${clip(call.name)}` : ""}` : clip(of.name);
  return { name, bad, call, marks };
}

function outcomeInWords(call) {
  if (!call.outcome) return "no outcome is on record";
  return `${call.failed ? "error" : "result"}${call.ms === null ? "" : ` after ${duration(call.ms)}`}`;
}

function timeOf(row) {
  return isCall(row) ? row.of.ms : row.of.span.length;
}

/** A row's usage. A sub-agent's usage is shown with its call; if the call shares its step's row, the two are added. */
function usageOf({ of }) {
  if (of instanceof Call) return of.scope?.usage ?? null;
  const below = of instanceof Step ? onlyCall(of)?.scope : null;
  return below ? new Usage().include(of.usage).include(below.usage) : of.usage;
}

/** The indentation of a row, which is limited for deep levels. */
function levelOf(level) {
  return Math.min(level - 1, 12);
}

/** The text and tooltip of a row's figures. */
function figures(row) {
  const usage = usageOf(row);
  const used = (sum, format) => {
    if (!usage || usage.calls === 0) return { text: "", title: null };
    if (sum.known === 0) return { text: "?", title: UNKNOWN };
    const text = format(usage);
    return { text, title: text.length > MOST_FIGURE ? text : null };
  };
  return [used(usage?.prompt, tokensShort), used(usage?.cost, costShort), { text: clock(timeOf(row)), title: null }];
}

function tokensShort(usage) {
  const total = usage.prompt.total + usage.completion.total;
  const more = usage.prompt.unknown || usage.completion.unknown ? "≥" : "";
  return more + (total < 10000 ? count(total) : total < 1e6 ? `${(total / 1000).toFixed(1)}k` : `${(total / 1e6).toFixed(1)}M`);
}

function costShort(usage) {
  return usage.cost.show(dollars).replace("≥ ", "≥");
}
