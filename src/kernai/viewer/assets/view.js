// The state of the page, and the actions of keys and clicks.

const view = {
  recording: new Recording(),
  media: {},
  live: null,
  stays: false, // whether to stay at the end while following a run
  lists: {},
  tab: "conversation",
  left: null, // the tab from which a link led to an event
  wanted: null, // the number of the event that the address names, until that event arrives
  card: "conversation", // the list of cards that was opened last
  wide: matchMedia("(min-width: 1080px)"),

  /** Brings everything up to date with the recording. With `redraw`, unchanged cards are drawn again, too. */
  refresh(redraw = false) {
    this.filters.refresh();
    this.timeline.refresh();
    this.refreshLists(redraw);
    drawHead();
  },

  /** Called after the filters have changed. */
  refilter() {
    this.timeline.refresh();
    this.refreshLists();
  },

  refreshLists(redraw = false) {
    const shown = this.card;
    const list = this.lists[shown];
    const { scroller } = list;
    const atEnd = this.live && scroller.scrollTop > 0 && scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
    list.set(shown === "events" ? this.eventItems() : this.conversationItems(), redraw);
    for (const [name, other] of Object.entries(this.lists)) if (name !== shown && redraw) other.set([]);
    this.search.refresh(list, shown === "events" ? (item) => matches(item.event) : itemMatches);
    document.getElementById("nothing").hidden = list.items.length > 0;
    document.getElementById("nothing-text").textContent = this.recording.events.length === 0
      ? "There is no event yet." : "No event passes the filters.";
    document.getElementById("clear").hidden = !this.filters.active;
    if (this.stays && list.items.length > 0) list.reveal(list.items.length - 1, "end");
    else if (atEnd) list.scrollTo(scroller.scrollHeight);
  },

  stay(on) {
    this.stays = on;
    document.getElementById("stay").setAttribute("aria-pressed", String(on));
    this.refreshLists();
  },

  eventItems() {
    const items = [];
    for (const event of this.recording.events) {
      if (this.filters.passes(event)) items.push((event.item ??= { key: event.n, version: 0, event }));
    }
    return items;
  },

  conversationItems() {
    const items = conversationItems(this.filters.scopes());
    if (!this.filters.errors) return items;
    const kept = items.filter((item) => item.kind === "heading" || itemHasProblem(item));
    return kept.filter((item, at) => item.kind !== "heading" || (kept[at + 1] ?? item).kind !== "heading");
  },

  reset() {
    this.recording = new Recording();
    this.filters.clear();
    this.timeline.zoom = null;
    // new items may have the same keys as old ones
    for (const list of [...Object.values(this.lists), this.timeline.list]) list.set([]);
  },

  /** Shows a tab. On a narrow page, the time line is one of the tabs. */
  open(tab) {
    if (tab === "timeline" && this.wide.matches) {
      this.timeline.focus(); // always visible on a wide page
      return;
    }
    this.tab = tab;
    if (tab !== "timeline") this.card = tab;
    document.body.dataset.tab = tab;
    for (const one of document.querySelectorAll("[role=tab]")) {
      const on = one.id === `tab-${tab}`;
      one.setAttribute("aria-selected", String(on));
      one.tabIndex = on ? 0 : -1;
    }
    if (tab === "timeline") this.timeline.drawPath(); // could not be measured while hidden
    this.refreshLists();
  },

  /** Scrolls the open list to the item that a row of the time line stands for. */
  show(row) {
    const { of, kind } = row;
    if (this.tab === "timeline") this.open(this.card);
    if (this.card === "events") {
      if (of.first) this.goTo(of.first.n, false);
      return;
    }
    const step = kind === "step" ? of : of.step;
    const keys = kind === "run" || of instanceof Scope ? [`h${of.key}`, firstKey(of)] : [`s${step.key}`];
    if (this.filters.where !== null && this.filters.where !== (of instanceof Scope ? of : step.scope)) this.filters.setWhere(null);
    const list = this.lists.conversation;
    const found = keys.find((key) => list.index.has(key));
    const call = (element) => [...element.querySelectorAll("[data-call]")].find((block) => block.dataset.call === of.id);
    point(found === undefined ? null : list.reveal(list.index.get(found), "start", kind === "skill" || kind === "protocol" ? call : undefined));
  },

  showScope(scope) {
    this.open("conversation");
    this.filters.setWhere(scope);
    this.lists.conversation.scrollTo(0);
  },

  /** Shows event `n` in the list of events, and clears the filters if they hide it. */
  goTo(n, focus = true) {
    const event = this.recording.events[n - 1];
    if (!event) return false;
    if (this.tab !== "events") {
      this.left = this.tab;
      this.open("events");
    }
    if (!this.filters.passes(event)) {
      this.filters.clear();
      this.refilter();
    }
    const element = this.lists.events.reveal(this.lists.events.index.get(n));
    point(element);
    if (focus) element?.focus({ preventScroll: true });
    return true;
  },
};

function firstKey(scope) {
  const items = [];
  scopeItems(scope, items);
  return items[0]?.key;
}

function point(element) {
  for (const old of document.querySelectorAll(".target")) old.classList.remove("target");
  element?.classList.add("target");
}

/** Draws the line of facts about all runs at the top of the page. */
function drawHead() {
  const { runs, events } = view.recording;
  const usage = new Usage();
  let problems = 0;
  for (const run of runs) usage.include(run.root.usage);
  for (const event of events) problems += event.problem ? 1 : 0;
  const result = runs.length === 1 ? runs[0].root.result : null;
  const state = isWaiting(result?.data) ? pill("waiting", "open")
    : result ? pill(asText(result.data?.stop_reason) || "ended", result.problem ? "failed" : "done")
    : runs.length === 1 ? pill(view.live ? "running" : "no end on record", "open") : null;
  const fact = (value, name) => el("span", { class: "figure" }, el("b", null, value), ` ${name}`);
  const span = runs.length === 1 ? runs[0].root.span.length : null;
  document.getElementById("head").replaceChildren(...[
    state,
    runs.length > 1 ? fact(count(runs.length), "runs") : null,
    runs.length === 1 ? fact(duration(span), "") : null,
    fact(count(usage.calls), usage.calls === 1 ? "model call" : "model calls"),
    usage.calls === 0 ? null : usage.prompt.known + usage.completion.known === 0 ? fact(UNKNOWN, "tokens")
      : el("span", { class: "figure" }, el("b", null, usage.prompt.show()), " in, ", el("b", null, usage.completion.show()), " out"),
    usage.calls === 0 ? null : usage.cost.known === 0 ? el("span", { class: "figure" }, "cost ", el("b", null, UNKNOWN))
      : fact(usage.cost.show(dollars), ""),
    fact(count(events.length), events.length === 1 ? "event" : "events"),
    problems > 0 ? button(counted(problems, "problem"), "Errors only",
      () => view.filters.setErrors(!view.filters.errors), "figure bad") : null,
  ].filter(Boolean));
}
