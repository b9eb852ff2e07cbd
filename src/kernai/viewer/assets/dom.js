// Elements and text. Everything shown comes from a model, a tool or a file, so it is written as text, never as markup.
// Elements are made by createElement, text is added as text nodes, and only addresses of the forms `#e…` and
// `data:image/…` are used, except for links in rendered Markdown.

/** The current search: a regular expression, or null. `write` marks its matches. */
const search = { pattern: null };

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) made.append(child);
  return made;
}

function button(label, title, onClick, className = "") {
  const made = el("button", { type: "button", class: className, title }, label);
  made.addEventListener("click", onClick);
  return made;
}

const PLAIN = /^[\n\t\x20-\x7e]*$/;
// control characters, lone surrogates, and characters that reorder or hide the text around them
const ODD = /(?![\n\t])[\p{Cc}\p{Cs}\xad\u034f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;

/** Replaces each invisible character by a visible one: a null byte by ␀, a bidi override by ⟨U+202E⟩. */
function visible(text) {
  if (PLAIN.test(text)) return text;
  return text.replaceAll("\r\n", "\n").replace(ODD, (odd) => {
    const code = odd.codePointAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

const MOST_MARKS = 300;

/** Appends text to a node, with invisible characters replaced and the search's matches marked. */
function write(node, text) {
  const shown = visible(text);
  if (!search.pattern) {
    node.append(shown);
    return node;
  }
  let at = 0;
  let marks = 0;
  search.pattern.lastIndex = 0;
  for (const found of shown.matchAll(search.pattern)) {
    node.append(shown.slice(at, found.index), el("mark", null, found[0]));
    at = found.index + found[0].length;
    if (++marks === MOST_MARKS) break;
  }
  node.append(shown.slice(at));
  return node;
}

const LONGEST_NAME = 300;

/** Cuts a long name. The JSON of its event shows the whole name. */
function clip(text) {
  return text.length <= LONGEST_NAME ? text : `${text.slice(0, boundary(text, LONGEST_NAME))}…`;
}

/** A span with a short text, such as a name or a fact. */
function span(className, text) {
  return write(el("span", { class: className }), clip(text));
}

/** The index `at`, or the one before it if `at` would split a surrogate pair. */
function boundary(text, at) {
  const code = text.charCodeAt(at);
  return code >= 0xdc00 && code <= 0xdfff ? at - 1 : at;
}

const PREVIEW = 900;
const PREVIEW_LINES = 12;
const PIECE = 16000;

/** The start and end of a text's preview: from the text's start, or around the search's first match if that is later. */
function previewRange(text, limit, lines) {
  let start = 0;
  if (search.pattern && text.length > limit) {
    search.pattern.lastIndex = 0;
    const found = search.pattern.exec(text);
    if (found && found.index + found[0].length > limit) start = boundary(text, Math.max(0, found.index - 120));
  }
  let end = Math.min(text.length, start + limit);
  for (let line = 1, at = start; line <= lines; line++) {
    at = text.indexOf("\n", at) + 1;
    if (at === 0 || at >= end) break;
    if (line === lines) end = at - 1;
  }
  // a few more lines take hardly more space than the button that would show them
  if (start === 0 && text.length - end < 80 && text.slice(end).trimEnd().split("\n").length <= 4) end = text.length;
  return [start, end < text.length ? boundary(text, end) : end];
}

/** A block of text. A long text is cut and shown in full on demand; JSON is formatted and Markdown rendered on demand. */
function textBlock(text, className = "text", limit = PREVIEW, lines = PREVIEW_LINES) {
  const other = className.includes("json") ? null : otherForm(text, className);
  if (other === null) return cutBlock(text, className, limit, lines);
  const holder = el("div");
  const show = (on) => {
    holder.replaceChildren(on ? other.draw() : cutBlock(text, className, limit, lines));
    toggle.textContent = on ? "As recorded" : other.label;
    const buttons = holder.querySelector(".buttons") ?? holder.appendChild(el("div", { class: "buttons" }));
    buttons.append(toggle, copyButton(text, "Copy this text as it is recorded", "more"));
  };
  const toggle = button("", other.title, () => {
    holder.dataset.open = "";
    show(toggle.textContent === other.label);
    toggle.focus({ preventScroll: true });
  }, "more");
  show(false);
  return holder;
}

/** Another form in which the text can be shown (formatted JSON, rendered Markdown), or null. */
function otherForm(text, className) {
  const laid = layOut(text);
  if (laid !== null) {
    const draw = () => cutBlock(laid, className, PIECE, LAID_LINES);
    return laid === text ? null : { label: "Lay out", title: "Lay the JSON out, or show it as it is recorded", draw };
  }
  if (!looksLikeMarkdown(text)) return null;
  return { label: "Render Markdown", title: "Render the Markdown, or show it as it is recorded", draw: () => markdown(text) };
}

const SHORT_JSON = 80; // shorter JSON is readable without formatting
const LONG_JSON = 200000;
const LAID_LINES = 300;
const TOKEN = /"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/g;

/** JSON formatted with one value per line, or null. It is built from the text's tokens: parsing would round long numbers. */
function layOut(text) {
  if (text.length < SHORT_JSON || text.length > LONG_JSON || !/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const tokens = text.match(TOKEN);
  let depth = 0;
  const line = (by) => `\n${"  ".repeat(depth += by)}`;
  return tokens.map((token, at) => {
    if ("{[".includes(token)) return "}]".includes(tokens[at + 1]) ? token : token + line(1);
    if ("}]".includes(token)) return "{[".includes(tokens[at - 1]) ? token : line(-1) + token;
    return { ",": `,${line(0)}`, ":": ": " }[token] ?? token;
  }).join("");
}

function cutBlock(text, className, limit, lines) {
  const scrolls = className.includes("json");
  const block = el("pre", { class: className, dir: "auto", tabindex: scrolls ? 0 : null });
  const [start, end] = previewRange(text, limit, lines);
  if (start > 0) block.append(el("span", { class: "cut" }, "… "));
  write(block, text.slice(start, end));
  if (start === 0 && end === text.length) return block;
  block.append(el("span", { class: "cut" }, " …"));
  const whole = button(`Show all ${count(text.length)} characters`, "Show the whole text", () => {
    whole.replaceWith(el("span", { class: "cut", role: "status" }, `${count(text.length)} characters`));
    showWhole(block, text);
  }, "more");
  return el("div", null, block, el("div", { class: "buttons" }, whole));
}

/** Fills a block with a text of any size, a few pieces per frame. Style keeps pieces out of sight from costing layout. */
function showWhole(block, text) {
  block.replaceChildren();
  block.parentElement.dataset.open = "";
  block.classList.add("whole");
  block.tabIndex = 0; // it scrolls on its own
  const pieces = cutUp(text);
  let at = 0;
  const next = () => {
    if (at > 0 && !block.isConnected) return;
    for (const until = performance.now() + 8; at < pieces.length && performance.now() < until; at++) {
      block.append(write(el("span", { class: "piece" }), pieces[at]));
    }
    if (at < pieces.length) requestAnimationFrame(next);
  };
  next();
}

/** Splits the text into pieces, each drawn on lines of its own; at the end of a line if possible. */
function cutUp(text) {
  const pieces = [];
  for (let at = 0; at < text.length;) {
    let end = Math.min(text.length, at + PIECE);
    const line = end < text.length ? text.lastIndexOf("\n", end) : -1;
    if (line > at) {
      pieces.push(text.slice(at, line));
      at = line + 1;
    } else {
      end = end < text.length ? boundary(text, end) : end;
      pieces.push(text.slice(at, end));
      at = end;
    }
  }
  return pieces;
}

function copyButton(text, title, className = "") {
  const made = button("Copy", title, async () => {
    made.textContent = (await copy(text)) ? "Copied" : "Cannot copy";
  }, className);
  return made;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = el("textarea", { class: "offscreen", readonly: true });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
