// A list of any length. Items are drawn in chunks, and only chunks near the screen are drawn. The others keep the height
// that they had, or that items have on average. An item is `{key, version, …}`; it keeps its element until its version
// changes.

const CHUNK = 20;
const AHEAD = "1500px 0px";

class List {
  /** `draw(item)` returns an item's element; `height` is the estimate for one item until some were measured; with
   * `feed`, items are numbered for screen readers. */
  constructor(scroller, host, draw, height, feed = true) {
    this.feed = feed;
    this.scroller = scroller;
    this.host = host;
    this.draw = draw;
    this.height = height;
    this.items = [];
    this.chunks = [];
    this.index = new Map();
    this.aim = null; // the item to keep on screen, until the reader scrolls
    this.marked = null; // the key of the search's current match
    for (const act of ["wheel", "touchmove", "pointerdown", "keydown"]) {
      scroller.addEventListener(act, () => { this.aim = null; }, { passive: true });
    }
    this.watch = new IntersectionObserver((seen) => this.onSeen(seen), { root: scroller, rootMargin: AHEAD });
  }

  /** Shows these items. With `redraw`, unchanged items are drawn again, too (because the search has changed, for example). */
  set(items, redraw = false) {
    const old = this.items;
    this.items = items;
    this.host.hidden = items.length === 0; // a feed must have articles
    this.index = new Map(items.map((item, at) => [item.key, at]));
    const needed = Math.ceil(items.length / CHUNK);
    while (this.chunks.length > needed) this.drop(this.chunks.pop());
    for (let number = 0; number < needed; number++) {
      const chunk = this.chunks[number] ?? this.grow(number);
      const from = number * CHUNK;
      const until = Math.min(items.length, from + CHUNK);
      if (!redraw && chunk.until === until && same(items, old, from, until)) continue;
      chunk.until = until;
      if (chunk.filled) this.fill(chunk, redraw);
      else chunk.element.style.setProperty("height", `${(until - from) * this.height}px`);
    }
    for (const chunk of this.chunks) if (chunk.filled) this.number(chunk);
  }

  /** Replaces the item at an index by another one with the same key. */
  replace(at, item) {
    this.items[at] = item;
    const chunk = this.chunks[Math.floor(at / CHUNK)];
    if (chunk.filled) this.fill(chunk);
  }

  number(chunk) {
    if (!this.feed) return;
    [...chunk.element.children].forEach((element, at) => {
      element.setAttribute("aria-posinset", chunk.number * CHUNK + at + 1);
      element.setAttribute("aria-setsize", view.live ? -1 : this.items.length);
    });
  }

  grow(number) {
    const element = document.createElement("div");
    element.className = "chunk";
    element.setAttribute("role", "presentation");
    const chunk = { number, element, until: 0, filled: false, drawn: new Map() };
    element.chunk = chunk;
    this.chunks.push(chunk);
    this.host.append(element);
    this.watch.observe(element);
    return chunk;
  }

  drop(chunk) {
    this.watch.unobserve(chunk.element);
    chunk.element.remove();
  }

  onSeen(seen) {
    for (const { target, isIntersecting } of seen) {
      if (isIntersecting && !target.chunk.filled) this.fill(target.chunk);
      else if (!isIntersecting && target.chunk.filled) this.empty(target.chunk);
    }
    this.settle(); // chunks above that were just drawn may differ from their estimated height
  }

  fill(chunk, redraw = false) {
    const drawn = new Map();
    const elements = [];
    for (let at = chunk.number * CHUNK; at < chunk.until; at++) {
      const item = this.items[at];
      const key = `${item.key}@${item.version}`;
      const element = (!redraw && chunk.drawn.get(key)) || this.draw(item);
      element.classList.toggle("current", item.key === this.marked);
      drawn.set(key, element);
      elements.push(element);
    }
    const focused = chunk.element.contains(document.activeElement) ? document.activeElement.id : null;
    chunk.drawn = drawn;
    chunk.filled = true;
    chunk.element.style.removeProperty("height");
    chunk.element.replaceChildren(...elements);
    this.number(chunk);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  /** Discards the elements of a chunk far from the screen, unless it has `aim`, the focus or something that was opened. */
  empty(chunk) {
    const { element } = chunk;
    if (this.aim && Math.floor(this.index.get(this.aim.key) / CHUNK) === chunk.number) return;
    if (this.printing || element.contains(document.activeElement) || element.querySelector("[data-open]")) return;
    const high = element.offsetHeight;
    if (high === 0) return; // not shown at all
    this.height = Math.max(1, (this.height * 3 + high / (chunk.until - chunk.number * CHUNK)) / 4);
    element.style.setProperty("height", `${high}px`);
    element.replaceChildren();
    chunk.filled = false;
    chunk.drawn = new Map();
  }

  element(index) {
    const chunk = this.chunks[Math.floor(index / CHUNK)];
    if (!chunk) return null;
    if (!chunk.filled) this.fill(chunk);
    return chunk.element.children[index % CHUNK];
  }

  /** Scrolls to an item, or to the element that `part` finds in it, and returns the item's element. */
  reveal(index, block = "start", part = () => null) {
    for (const near of [index - CHUNK, index + CHUNK]) if (near >= 0 && near < this.items.length) this.element(near);
    const element = this.element(index);
    if (!element) return null;
    this.aim = { key: this.items[index].key, block, part };
    this.settle();
    return element;
  }

  settle() {
    if (!this.aim) return;
    const { key, block, part } = this.aim;
    const element = this.index.has(key) ? this.element(this.index.get(key)) : null;
    if (element) (part(element) ?? element).scrollIntoView({ block });
  }

  /** Scrolls to an offset in pixels. */
  scrollTo(top) {
    this.aim = null;
    this.scroller.scrollTop = top;
  }

  /** Scrolls to an item and marks it as the search's current match. */
  mark(index) {
    this.element(this.index.get(this.marked))?.classList.remove("current");
    this.marked = this.items[index].key;
    this.reveal(index).classList.add("current");
  }

  /** The index of the first item that extends below `edge`: by default, the first visible one. */
  top(edge = this.scroller.getBoundingClientRect().top + 4) {
    const isBelow = (element) => element.getBoundingClientRect().bottom > edge;
    let from = 0;
    for (let to = this.chunks.length - 1; from < to;) {
      const middle = Math.floor((from + to) / 2);
      if (isBelow(this.chunks[middle].element)) to = middle;
      else from = middle + 1;
    }
    const inside = [...(this.chunks[from]?.element.children ?? [])].findIndex(isBelow);
    return from * CHUNK + Math.max(0, inside);
  }

  /** Draws everything at once for printing. */
  print(on) {
    this.printing = on;
    if (on) for (const chunk of this.chunks) if (!chunk.filled) this.fill(chunk);
  }
}

function same(items, old, from, until) {
  for (let at = from; at < until; at++) {
    if (!old[at] || items[at].key !== old[at].key || items[at].version !== old[at].version) return false;
  }
  return true;
}
