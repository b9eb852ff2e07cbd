// The line between the time line and the rest, which moves: dragged, by arrow keys, and back by a double click. Style
// keeps both sides wide enough, on a window of any width.

const STEP = 2; // of a hundred

class Splitter {
  /** `onMove` is called when the sides have another width. */
  constructor(line, panes, onMove) {
    this.line = line;
    this.panes = panes;
    this.onMove = onMove;
    line.addEventListener("pointerdown", (event) => this.grab(event));
    line.addEventListener("pointermove", (event) => line.hasPointerCapture(event.pointerId) && this.to(this.at(event.clientX)));
    line.addEventListener("keydown", (event) => this.onKey(event));
    line.addEventListener("dblclick", () => this.to(null));
    addEventListener("resize", () => this.announce());
    this.announce();
  }

  grab(event) {
    if (event.button !== 0) return;
    event.preventDefault(); // no text is selected on the way
    this.line.setPointerCapture(event.pointerId);
    this.line.focus({ preventScroll: true });
  }

  /** A place on the screen as a share of the panes' width, in hundredths. */
  at(x) {
    const { left, width } = this.panes.getBoundingClientRect();
    return width > 0 ? ((x - left) / width) * 100 : 0;
  }

  get now() {
    return this.at(this.line.getBoundingClientRect().left);
  }

  /** Moves the line; null is its default place. */
  to(share) {
    if (share === null) this.panes.style.removeProperty("--split");
    else this.panes.style.setProperty("--split", `${Math.min(100, Math.max(0, share))}%`);
    this.announce();
    this.onMove();
  }

  announce() {
    this.line.setAttribute("aria-valuenow", Math.round(this.now));
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = { ArrowLeft: this.now - STEP, ArrowRight: this.now + STEP, Home: 0, End: 100 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.to(to);
  }
}
