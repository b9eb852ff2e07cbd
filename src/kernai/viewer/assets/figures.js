// Formats numbers for people. A value that was not measured is "unknown", never 0.

const UNKNOWN = "unknown";

const DIGITS = new Intl.NumberFormat("en-US"); // kept, because `toLocaleString` makes one for each number

function count(number) {
  return DIGITS.format(number);
}

/** A number with its noun: "1 step", "2,000 steps". */
function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Milliseconds as text. */
function duration(ms) {
  if (!isNumber(ms)) return UNKNOWN;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  const hours = Math.floor(seconds / 3600);
  const minutes = Math.floor(seconds / 60) % 60;
  return `${hours ? `${hours} h ` : ""}${minutes} min ${seconds % 60} s`;
}

/** Milliseconds as text short enough for a column: from one minute on like a clock, 1:05:09. */
function clock(ms) {
  if (!isNumber(ms) || ms < 60000) return isNumber(ms) ? duration(ms) : "?";
  const seconds = Math.round(ms / 1000);
  const two = (number) => String(number).padStart(2, "0");
  const minutes = `${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
  return seconds < 3600 ? minutes : `${Math.floor(seconds / 3600)}:${minutes}`;
}

function bytes(size) {
  if (!isNumber(size)) return UNKNOWN;
  if (size < 1000) return `${size} B`;
  return size < 1e6 ? `${(size / 1000).toFixed(1)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}

function dollars(cost) {
  if (cost === 0) return "$0";
  return cost < 0.01 ? `$${cost.toPrecision(2)}` : `$${cost.toFixed(cost < 1 ? 3 : 2)}`;
}

/** A sum of the known values, which also counts the unknown ones. */
class Sum {
  constructor() {
    this.total = 0;
    this.known = 0;
    this.unknown = 0;
  }

  add(value) {
    if (isNumber(value)) {
      this.total += value;
      this.known += 1;
    } else this.unknown += 1;
  }

  include(other) {
    for (const part of ["total", "known", "unknown"]) this[part] += other[part];
  }

  show(format = count) {
    if (this.known === 0) return UNKNOWN;
    return (this.unknown ? "≥ " : "") + format(this.total);
  }
}

/** The usage of model calls: tokens as reported by vendors, cost in dollars. */
class Usage {
  constructor() {
    this.calls = 0;
    this.prompt = new Sum();
    this.completion = new Sum();
    this.cost = new Sum();
  }

  add(response) {
    this.calls += isNumber(response.model_calls) ? response.model_calls : 1;
    this.prompt.add(response.prompt_tokens);
    this.completion.add(response.completion_tokens);
    this.cost.add(response.cost);
  }

  /** Adds another sum to this one. */
  include(other) {
    this.calls += other.calls;
    for (const part of ["prompt", "completion", "cost"]) this[part].include(other[part]);
    return this;
  }

  /** "1,200 in, 80 out", or "tokens unknown". */
  tokens() {
    if (this.prompt.known === 0 && this.completion.known === 0) return `tokens ${UNKNOWN}`;
    return `${this.prompt.show()} in, ${this.completion.show()} out`;
  }

  money() {
    return this.cost.known === 0 ? `cost ${UNKNOWN}` : this.cost.show(dollars);
  }

  /** All of it in words, for tooltips and screen readers. */
  summary() {
    return `${counted(this.calls, "model call")}; tokens: ${this.prompt.show()} in, ${this.completion.show()} out; cost: ${this.cost.show(dollars)}`;
  }
}
