// The keyboard, the tabs, the dialogs and the theme.

const TABS = ["timeline", "conversation", "events"];

function step(by) {
  const list = view.lists[view.card];
  if (list.items.length === 0) return;
  const held = document.activeElement?.closest?.(".card, .divider");
  const chunk = held?.closest(".chunk")?.chunk;
  const inside = chunk && list.chunks[chunk.number] === chunk;
  const at = inside ? chunk.number * CHUNK + [...chunk.element.children].indexOf(held) + by : list.top();
  const to = Math.max(0, Math.min(list.items.length - 1, at));
  list.reveal(to, "start")?.focus({ preventScroll: true });
}

function jump(end) {
  const list = view.lists[view.card];
  if (list.items.length > 0) list.reveal(end ? list.items.length - 1 : 0, end ? "end" : "start")?.focus({ preventScroll: true });
}

function toggleJson() {
  document.activeElement?.closest?.(".card")?.querySelector(".toggle")?.click();
}

async function copyLink() {
  const link = document.activeElement?.closest?.(".card")?.querySelector(".link");
  if (link) say((await copy(link.href)) ? "The link is copied." : "The link cannot be copied.");
}

/** Shows a message for a moment; screen readers read it out. */
function say(text) {
  const line = document.getElementById("said");
  line.textContent = text;
  clearTimeout(say.waiting);
  say.waiting = setTimeout(() => { line.textContent = ""; }, 2500);
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

function help() {
  document.getElementById("help").showModal();
}

const KEYS = {
  "?": help,
  "/": () => document.getElementById("search").focus(),
  n: () => view.search.move(1),
  N: () => view.search.move(-1),
  j: () => step(1),
  k: () => step(-1),
  g: () => jump(false),
  G: () => jump(true),
  o: toggleJson,
  c: copyLink,
  e: () => view.filters.setErrors(!view.filters.errors),
  f: () => view.live && view.stay(!view.stays),
  l: () => {
    view.open("timeline");
    view.timeline.focus();
  },
  1: () => view.open("conversation"),
  2: () => view.open("events"),
  3: () => view.open("timeline"),
  t: toggleTheme,
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.key === "Escape") return leave(event);
  if (event.target.closest("input, select, textarea, dialog")) return;
  if (!Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
}

/** Handles Escape: closes the list of types, or clears the search. */
function leave(event) {
  const types = document.getElementById("types-box");
  if (types.open) {
    types.open = false;
    types.querySelector("summary").focus();
  } else if (event.target.id === "search") {
    view.search.clear(() => view.refreshLists(true));
    event.target.blur();
  }
}

function listen() {
  document.addEventListener("keydown", onKey);
  document.getElementById("theme").addEventListener("click", toggleTheme);
  document.getElementById("help-button").addEventListener("click", help);
  document.getElementById("clear").addEventListener("click", () => {
    view.filters.clear();
    view.refilter();
  });
  for (const tab of TABS) document.getElementById(`tab-${tab}`).addEventListener("click", () => view.open(tab));
  document.getElementById("tabs").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const tabs = TABS.filter((tab) => document.getElementById(`tab-${tab}`).offsetParent !== null);
    const to = tabs[(tabs.indexOf(view.tab) + by + tabs.length) % tabs.length];
    view.open(to);
    document.getElementById(`tab-${to}`).focus();
  });
  document.addEventListener("click", (event) => {
    const types = document.getElementById("types-box");
    if (types.open && !types.contains(event.target)) types.open = false;
    // if the address names this event already, the click changes no address, so there is no `hashchange`
    const link = event.target.closest?.("a.link");
    if (link && link.hash === location.hash) onHash();
  });
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  }
  addEventListener("hashchange", onHash);
  addEventListener("beforeprint", () => Object.values(view.lists).forEach((list) => list.print(true)));
  addEventListener("afterprint", () => Object.values(view.lists).forEach((list) => list.print(false)));
  view.wide.addEventListener("change", () => view.wide.matches && view.tab === "timeline" && view.open(view.card));
}

function onHash() {
  if (location.hash === "" && view.left !== null) view.open(view.left); // the reader went back
  const found = /^#e(\d{1,9})$/.exec(location.hash);
  if (!found) return;
  view.wanted = view.goTo(Number(found[1])) ? null : Number(found[1]);
  if (view.wanted !== null && !view.live) say(`There is no event ${found[1]}.`);
}
