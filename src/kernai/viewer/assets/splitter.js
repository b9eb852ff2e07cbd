// The movable divider next to the time line: dragged or moved by arrow keys; a double click resets it. The style sheet
// keeps both sides wide enough, whatever the width of the window.

const STEP = 2; // percent

class Splitter {
  /** `onMove` is called after the divider has moved. */
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
    event.preventDefault(); // so that dragging selects no text
    this.line.setPointerCapture(event.pointerId);
    this.line.focus({ preventScroll: true });
  }

  /** A horizontal position on the screen, in percent of the panes' width. */
  at(x) {
    const { left, width } = this.panes.getBoundingClientRect();
    return width > 0 ? ((x - left) / width) * 100 : 0;
  }

  get now() {
    return this.at(this.line.getBoundingClientRect().left);
  }

  /** Moves the divider to a position in percent; null resets it. */
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
