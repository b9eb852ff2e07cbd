// Filters for events (by type, by run or sub-run, errors only), and the search in the events that pass them.

// The list offers at most this many choices. Events beyond them are still shown.
const MOST_PLACES = 2000;

class Filters {
  constructor(onChange) {
    this.onChange = onChange;
    this.hidden = new Set(); // types
    this.where = null; // null, a Run or a Scope
    this.errors = false;
    this.select = document.getElementById("scope");
    this.boxes = document.getElementById("types");
    this.errorsButton = document.getElementById("errors");
    this.places = [];
    this.types = "";
    this.select.addEventListener("change", () => {
      this.where = this.places[this.select.value] ?? null;
      onChange();
    });
    this.errorsButton.addEventListener("click", () => this.setErrors(!this.errors));
    document.getElementById("all-types").addEventListener("click", () => this.setTypes(true));
    document.getElementById("no-types").addEventListener("click", () => this.setTypes(false));
  }

  passes(event) {
    if (this.errors && !event.problem) return false;
    if (this.hidden.has(event.type)) return false;
    return this.where === null || event.run === this.where || event.scope === this.where;
  }

  /** The scopes whose conversations are shown. */
  scopes() {
    if (this.where instanceof Scope) return [this.where];
    const runs = this.where ? [this.where] : view.recording.runs;
    return runs.flatMap((run) => [...run.scopes.values()].filter((scope) => scope.first));
  }

  get active() {
    return this.errors || this.hidden.size > 0 || this.where !== null;
  }

  clear() {
    this.hidden.clear();
    this.errors = false;
    this.where = null;
    this.types = "";
    this.refresh();
  }

  setErrors(on) {
    this.errors = on;
    this.refresh();
    this.onChange();
  }

  setTypes(on) {
    this.hidden = new Set(on ? [] : view.recording.types.keys());
    this.types = "";
    this.refresh();
    this.onChange();
  }

  setWhere(where) {
    this.where = where;
    this.refresh();
    this.onChange();
  }

  /** Brings the controls up to date with the recording. */
  refresh() {
    this.errorsButton.setAttribute("aria-pressed", String(this.errors));
    document.getElementById("types-label").textContent = this.hidden.size ? `Types (${this.hidden.size} hidden)` : "Types";
    this.refreshScopes();
    this.refreshTypes();
  }

  refreshScopes() {
    const { runs } = view.recording;
    this.places = [null];
    const labels = [runs.length > 1 ? `All ${runs.length} runs` : "All scopes"];
    for (const run of runs) {
      if (this.places.length > MOST_PLACES) break;
      if (runs.length > 1) {
        this.places.push(run);
        labels.push(`Run ${run.index + 1}: ${clip(run.name)}`);
      }
      for (const scope of run.scopes.values()) {
        this.places.push(scope);
        labels.push(placeLabel(scope, runs.length > 1 ? 1 : 0));
        if (this.places.length > MOST_PLACES) break;
      }
    }
    const shown = labels.map((label) => visible(label).slice(0, 80));
    if (shown.join("\n") !== this.shown) {
      this.shown = shown.join("\n");
      const more = this.places.length > MOST_PLACES ? [el("option", { disabled: true }, "The time line has more")] : [];
      this.select.replaceChildren(...shown.map((label, at) => el("option", { value: at }, label)), ...more);
    }
    this.select.value = String(Math.max(0, this.places.indexOf(this.where)));
  }

  refreshTypes() {
    const types = [...view.recording.types].sort(([one], [other]) => (one < other ? -1 : 1));
    const key = JSON.stringify(types);
    if (key === this.types) return;
    this.types = key;
    this.boxes.replaceChildren(...types.map(([type, number]) => {
      const box = el("input", { type: "checkbox" });
      box.checked = !this.hidden.has(type);
      box.addEventListener("change", () => {
        if (box.checked) this.hidden.delete(type);
        else this.hidden.add(type);
        this.refresh();
        this.onChange();
      });
      return el("label", { class: kindOf(type).group }, box, el("span", { class: "dot", "aria-hidden": "true" }),
        span("name", type), el("span", { class: "number" }, count(number)));
    }));
  }
}

/** A scope's label in the list of choices, indented by its depth. */
function placeLabel(scope, depth) {
  const deep = depth + pathOf(scope).length - 1;
  const name = scope.parent ? `${clip(scope.name)} (${clip(scope.path)})` : `${clip(scope.run.name)}, without sub-agents`;
  return "\u2003".repeat(Math.min(deep, 8)) + name;
}

/** The scope and step of an item, in words: "buyer › south, step 1". */
function placeOf(item) {
  const step = item.step ?? item.event?.step;
  const path = pathOf(item.scope ?? step?.scope ?? item.event?.scope);
  return path.map(clip).join(" › ") + (step ? `, step ${step.number}` : "");
}

/** The search: the matches in the list that is shown, and the current match. */
class Search {
  constructor(onChange) {
    this.field = document.getElementById("search");
    this.label = document.getElementById("found");
    this.where = document.getElementById("found-in");
    this.found = [];
    this.current = -1;
    this.query = "";
    let waiting = 0;
    this.field.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.run(onChange), 150);
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      clearTimeout(waiting);
      this.run(onChange);
      this.move(event.shiftKey ? -1 : 1);
    });
    document.getElementById("next").addEventListener("click", () => this.move(1));
    document.getElementById("previous").addEventListener("click", () => this.move(-1));
  }

  run(onChange) {
    if (this.field.value === this.query) return;
    this.query = this.field.value;
    search.pattern = this.query ? new RegExp(this.query.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "giu") : null;
    this.current = -1;
    if (this.list) this.list.marked = null;
    onChange();
  }

  clear(onChange) {
    this.field.value = "";
    this.run(onChange);
  }

  /** Searches the items of the list that is shown. */
  refresh(list, matcher) {
    const kept = list.items[this.found[this.current]];
    this.list = list;
    this.found = search.pattern ? list.items.flatMap((item, at) => (matcher(item) ? [at] : [])) : [];
    this.current = kept ? this.found.indexOf(list.index.get(kept.key)) : -1;
    this.announce();
  }

  move(by) {
    if (this.found.length === 0) return;
    const from = this.current < 0 && by < 0 ? 0 : this.current;
    this.current = (from + by + this.found.length) % this.found.length;
    this.list.mark(this.found[this.current]);
    const item = this.list.items[this.found[this.current]];
    view.timeline.follow(item.event?.call ?? item.step ?? item.event?.step ?? item.scope ?? item.event?.scope);
    this.announce();
  }

  announce() {
    const number = this.found.length;
    const item = this.current < 0 ? null : this.list.items[this.found[this.current]];
    this.where.textContent = item ? visible(placeOf(item)) : "";
    if (!this.query) this.label.textContent = "";
    else if (number === 0) this.label.textContent = "none found";
    else this.label.textContent = this.current < 0 ? `${count(number)} found` : `${count(this.current + 1)} of ${count(number)}`;
  }
}
