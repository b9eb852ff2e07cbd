// Bar charts of tokens and cost for each step, in the order of the tree. They are stretched to the available width.

const MOST_PLOTTED = 240; // more bars could not be distinguished; with more steps, each bar is several steps
const LEAST_PLOTTED = 24; // a chart has room for at least this many bars, so that those of a few steps are not too wide
const PLOT_HEIGHT = 100; // of a chart, in the units of its view box

class Plot {
  constructor(box) {
    this.box = box;
    this.charts = document.getElementById("charts");
    this.steps = [];
    this.charts.addEventListener("click", (event) => {
      const step = this.stepAt(event);
      if (!step) return;
      view.timeline.follow(step);
      view.show({ of: step, kind: "step" });
    });
    this.charts.addEventListener("pointermove", (event) => {
      const step = this.stepAt(event);
      this.charts.title = step ? visible(`${placeOf({ step })}\n${step.usage.summary()}`) : "";
    });
  }

  /** Draws the steps that called a model, in these scopes and in all scopes below them. */
  refresh(scopes) {
    this.steps = scopes.flatMap((scope) => stepsBelow(scope)).filter((step) => step.usage.calls > 0 && isShown(step));
    this.box.hidden = this.steps.length === 0;
    this.perColumn = Math.ceil(this.steps.length / MOST_PLOTTED);
    const columns = [];
    const whole = new Usage();
    this.steps.forEach(({ usage }, at) => {
      if (at % this.perColumn === 0) columns.push(new Usage());
      columns.at(-1).include(usage);
      whole.include(usage);
    });
    this.width = Math.max(columns.length, LEAST_PLOTTED);
    this.charts.replaceChildren(
      this.chart("Tokens", "no usage is on record", count, columns, whole, { in: "prompt", out: "completion" }),
      this.chart("Cost", "no prices are on record", dollars, columns, whole, { "": "cost" }),
    );
  }

  /** Makes one chart. `series` maps labels to the parts of a usage that are stacked. */
  chart(name, missing, format, columns, whole, series) {
    const parts = Object.values(series);
    const isKnown = (usage) => parts.some((part) => usage[part].known > 0);
    const total = (usage) => parts.reduce((sum, part) => sum + usage[part].total, 0);
    const most = (usages) => usages.reduce((highest, usage) => Math.max(highest, total(usage)), 0);
    if (!isKnown(whole)) return el("p", null, el("b", null, name), ` ${UNKNOWN}: ${missing}`);
    const usages = this.steps.map(({ usage }) => usage);
    const unknown = usages.filter((usage) => !isKnown(usage)).length;
    const sums = Object.entries(series).map(([label, part]) => `${whole[part].show(format)} ${label}`.trim());
    const notes = [`at most ${format(most(usages))} in a step`, unknown && `${count(unknown)} of ${count(usages.length)} steps ${UNKNOWN}`,
      this.perColumn > 1 && `a bar is ${count(this.perColumn)} steps`].filter(Boolean).join("; ");
    const picture = svg("svg", { viewBox: `0 0 ${this.width} ${PLOT_HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${name} by step: ${sums.join(", ")}; ${notes}` });
    const top = most(columns);
    const lows = columns.map(() => 0);
    for (const part of parts) {
      picture.append(svg("path", { class: part, d: barsOf(columns.map((column, at) => {
        const low = lows[at];
        lows[at] = Math.min(1, low + (Math.max(0, column[part].total / top) || 0));
        return [low, lows[at]];
      })) }));
    }
    picture.append(svg("path", { class: "unknown", d: barsOf(columns.map((column) => (isKnown(column) ? [0, 0] : [0, 1]))) }));
    return el("div", null,
      el("p", null, el("b", null, name), sums.map((sum, at) => el("span", { class: `key ${parts[at]}` }, sum)), `; ${notes}`),
      el("div", { class: "bars" }, picture, el("span", { class: "chosen" })));
  }

  stepAt(event) {
    const bars = event.target.closest(".bars")?.getBoundingClientRect();
    return bars && this.steps[Math.floor(((event.clientX - bars.left) / bars.width) * this.width * this.perColumn)];
  }

  /** Marks a step, or none. */
  mark(step) {
    const at = this.steps.indexOf(step);
    for (const chosen of this.charts.querySelectorAll(".chosen")) {
      chosen.hidden = at < 0;
      chosen.style.setProperty("left", `${(at / this.width / this.perColumn) * 100}%`);
      chosen.style.setProperty("width", `${100 / this.width / this.perColumn}%`);
    }
  }
}

function stepsBelow(scope) {
  const below = ({ parts }) => parts.map((part) => (part instanceof Scope ? part : part.scope)).filter(Boolean);
  return [...[...scope.steps.values()].flatMap((step) => [step, ...below(step).flatMap(stepsBelow)]), ...scope.lost.flatMap(stepsBelow)];
}

/** Bars as one path. Each bar is `[from, to]`, as shares of the height. */
function barsOf(shares) {
  return shares.map(([from, to], at) => `M${at + 0.1} ${PLOT_HEIGHT * (1 - from)}V${PLOT_HEIGHT * (1 - to)}h.8V${PLOT_HEIGHT * (1 - from)}z`).join("");
}

function svg(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
