// Renders the subset of Markdown that models write, on demand. Elements are made one by one, and their text is written
// with `write`. HTML is shown as text, images become links, and links lead to the web or to mail only. Nesting is
// limited, and rendering takes linear time.

const MOST_NESTED = 12; // such as quotes in lists in quotes, or brackets in brackets
const MOST_COLUMNS = 100;
const LONG_MARKDOWN = 200000;
const LONG_PARAGRAPH = 10000; // longer ones were not written by a person; they are not rendered

const SIGNS = /^ {0,3}(?:#{1,6} |[-*+] |\d{1,9}[.)] |> |```|~~~)|^ *\|[^\n]*\|[ \t]*$|\*\*\S|`[^`\n]+`|\[[^\]\n]{1,100}\]\(/m;
const HEADING = /^ {0,3}(#{1,6})[ \t]([^]*)$/;
const FENCE = /^ *(`{3,}|~{3,})[^`]*$/;
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const INLINE = new RegExp([
  /\\(?<escaped>[!-/:-@[-`{-~\n])/,
  /(?<!`)(?<ticks>`{1,3})(?!`)(?<code>[^]*?[^`])\k<ticks>(?!`)/,
  /(?<stars>\*+|_+|~~)/,
  /(?<bracket>!?\[)/,
  /\](?:\([ \t]*<?(?<address>[^\s()<>]{1,2000}(?:\([^\s()<>]{0,200}\)[^\s()<>]{0,200}){0,5})>?(?:\s{1,9}"[^"]{0,200}")?[ \t]*\))?/,
  /\b(?<link>(?:https?:\/\/|mailto:)[^\s<>"`|[\]]{0,2000}[^\s<>"`|.,:;!?'()[\]*_~])/,
  / ?(?<line><br ?\/?>) ?/,
].map(({ source }) => source).join("|"), "g");
const EMPHASIS = [["del"], ["em"], ["strong"], ["em", "strong"]]; // by the length of the mark

/** Whether rendering a text as Markdown would change it. */
function looksLikeMarkdown(text) {
  return text.length <= LONG_MARKDOWN && SIGNS.test(text);
}

function markdown(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const levels = [...new Set(lines.map((line) => HEADING.exec(line)?.[1].length ?? 0))].filter(Boolean).sort();
  return el("div", { class: "markdown", dir: "auto", tabindex: 0, role: "group", "aria-label": "Rendered Markdown" }, blocksOf(lines, levels));
}

/** The blocks of these lines. `levels` are the heading levels in use; the highest is rendered one below a card's own. */
function blocksOf(lines, levels, depth = 0) {
  const made = [];
  for (let at = 0; at < lines.length;) {
    const reader = READERS.find(([begins, , nests]) => (!nests || depth < MOST_NESTED) && begins(lines, at));
    const [node, next] = reader ? reader[1](lines, at, levels, depth) : paragraph(lines, at);
    if (node) made.push(node);
    at = next;
  }
  return made;
}

/** For each kind of block: whether it begins at a line, a function that reads it, and whether it can contain blocks. */
const READERS = [
  [(lines, at) => !lines[at].trim(), (_, at) => [null, at + 1]],
  [(lines, at) => FENCE.test(lines[at]), fence],
  [(lines, at) => HEADING.test(lines[at]), heading],
  [(lines, at) => RULE.test(lines[at]), (_, at) => [el("hr"), at + 1]],
  [(lines, at) => QUOTE.test(lines[at]), quote, true],
  [(lines, at) => ITEM.test(lines[at]), list, true],
  [beginsTable, table],
];

function paragraph(lines, from) {
  let at = from + 1;
  while (at < lines.length && !READERS.some(([begins]) => begins(lines, at))) at++;
  return [el("p", null, inline(lines.slice(from, at).map((line) => line.trim()).join("\n"))), at];
}

function fence(lines, from) {
  const [, mark] = FENCE.exec(lines[from]);
  const indent = indentOf(lines[from]);
  let at = from + 1;
  const closes = (line) => line.trim().length >= mark.length && line.trim() === mark[0].repeat(line.trim().length);
  while (at < lines.length && !closes(lines[at])) at++;
  const code = lines.slice(from + 1, at).map((line) => line.slice(Math.min(indent, indentOf(line)))).join("\n");
  return [el("pre", null, write(el("code"), code)), at + 1];
}

function heading(lines, at, levels) {
  const [, marks, text] = HEADING.exec(lines[at]);
  return [el(`h${Math.min(6, 4 + levels.indexOf(marks.length))}`, null, inline(text.trim().replace(/ #+$/, ""))), at + 1];
}

function quote(lines, from, levels, depth) {
  let at = from;
  while (at < lines.length && QUOTE.test(lines[at])) at++;
  return [el("blockquote", null, blocksOf(lines.slice(from, at).map((line) => line.replace(QUOTE, "")), levels, depth + 1)), at];
}

/** Reads a list. Lines indented further than an item's mark belong to the item, because models do not count spaces. */
function list(lines, from, levels, depth) {
  const number = (mark) => (/\d/.test(mark) ? parseInt(mark, 10) : null);
  const first = number(ITEM.exec(lines[from])[2]);
  const items = [];
  let at = from;
  for (let found; (found = ITEM.exec(lines[at] ?? "")) && (number(found[2]) === null) === (first === null);) {
    const [head, { length: indent }] = found;
    const inside = [lines[at].slice(head.length)];
    for (at++; at < lines.length && (!lines[at].trim() || indentOf(lines[at]) > indent); at++) {
      inside.push(lines[at].slice(Math.min(indentOf(lines[at]), head.length)));
    }
    items.push(el("li", null, blocksOf(inside, levels, depth + 1)));
  }
  return [first === null ? el("ul", null, items) : el("ol", { start: first }, items), at];
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function cellsOf(line) {
  return line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());
}

function beginsTable(lines, at) {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return false;
  const [head, under] = [cellsOf(lines[at]), cellsOf(lines[at + 1])];
  return head.length === under.length && head.length <= MOST_COLUMNS && under.every((cell) => /^:?-+:?$/.test(cell));
}

function table(lines, from) {
  const head = cellsOf(lines[from]);
  const sides = cellsOf(lines[from + 1]).map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "middle" : "right") : null));
  const row = (cells, tag) => el("tr", null, head.map((_, at) => el(cells[at] ? tag : "td", { class: sides[at] }, inline(cells[at] ?? ""))));
  let at = from + 2;
  const rows = [];
  for (; at < lines.length && lines[at].includes("|"); at++) rows.push(row(cellsOf(lines[at]), "td"));
  return [el("table", null, el("thead", null, row(head, "th")), el("tbody", null, rows)), at];
}

/** The address if it leads to the web or to mail; null otherwise. */
function outsideAddress(address) {
  return /^(?:https?:\/\/|mailto:)/i.test(address) && URL.canParse(address) ? new URL(address).href : null;
}

/** A link out of the page. The address is shown if the text differs from it, so that readers see where it leads. */
function outsideLink(href, content) {
  for (const inner of content.querySelectorAll("a")) inner.replaceWith(...inner.childNodes);
  const same = [href, href.replace(/\/$/, ""), href.replace(/^mailto:/, "")].includes(content.textContent);
  const made = el("a", { href, target: "_blank", rel: "noopener noreferrer" }, content);
  return same ? [made] : [made, el("span", { class: "address" }, ` (${clip(href)})`)];
}

/** A paragraph's text with its emphasis, code and links. A mark that is never closed is shown as text. */
function inline(text) {
  if (text.length > LONG_PARAGRAPH) return write(new DocumentFragment(), text);
  const drawing = new InlineDrawing();
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    drawing.text(text.slice(at, found.index));
    at = found.index + found[0].length;
    drawing.token(found, text[found.index - 1] ?? " ", text[at] ?? " ");
  }
  drawing.text(text.slice(at));
  return drawing.end();
}

class InlineDrawing {
  constructor() {
    this.open = [{ mark: "", node: new DocumentFragment() }]; // marks not closed yet, each with the nodes after it
  }

  put(...nodes) {
    this.open.at(-1).node.append(...nodes);
  }

  text(shown) {
    write(this.open.at(-1).node, shown);
  }

  token({ 0: all, groups }, before, after) {
    const { escaped, code, stars, bracket, address, link, line } = groups;
    if (escaped) this.text(escaped);
    else if (code) this.put(write(el("code"), code.length > 2 ? code.replace(/^ ([^]*) $/, "$1") : code));
    else if (stars) this.stars(stars, before, after);
    else if (bracket && this.open.length < MOST_NESTED) this.begin(bracket);
    else if (link && outsideAddress(link)) this.put(...outsideLink(outsideAddress(link), write(new DocumentFragment(), link)));
    else if (all[0] === "]") this.bracketEnd(all, address);
    else this.text(line ? "\n" : all);
  }

  begin(mark) {
    this.open.push({ mark, node: new DocumentFragment() });
  }

  /** Closes the mark at an index of `open`. Marks opened after it become text. */
  close(place) {
    while (this.open.length - 1 > place) this.keep();
    return this.open.pop();
  }

  /** Turns the last open mark into text. */
  keep() {
    const { mark, node } = this.open.pop();
    this.put(mark, node);
  }

  stars(stars, before, after) {
    const inWord = (side) => stars[0] === "_" && /\w/.test(side);
    let left = stars;
    if (before.trim() && !inWord(after)) {
      for (let place; (place = this.open.findLastIndex(({ mark }) => mark && left.startsWith(mark))) > 0;) {
        const { mark, node } = this.close(place);
        left = left.slice(mark.length);
        this.put(EMPHASIS[mark[0] === "~" ? 0 : mark.length].reduce((inner, tag) => el(tag, null, inner), node));
      }
    }
    if (!left || left.length > 3 || !after.trim() || inWord(before)) {
      this.text(left);
      return;
    }
    const same = this.open.findIndex(({ mark }) => mark === left);
    if (same > 0) while (this.open.length > same) this.keep(); // of two equal opening marks, the nearer one counts
    this.begin(left);
  }

  bracketEnd(all, address) {
    const place = this.open.findLastIndex(({ mark }) => mark.endsWith("["));
    const href = address ? outsideAddress(address) : null;
    if (place > 0 && href) {
      const { mark, node } = this.close(place);
      if (mark === "![") node.prepend("Image: ");
      this.put(...outsideLink(href, node));
    } else {
      if (place > 0) while (this.open.length > place) this.keep();
      this.text(all);
    }
  }

  end() {
    while (this.open.length > 1) this.keep();
    this.open[0].node.normalize();
    return this.open[0].node;
  }
}
