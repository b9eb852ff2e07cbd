// Parts that cards are made of, and the card of one event.

const PREVIEW_JSON = 20000;
const PREVIEW_SENT = 320;

/** The link to an event: its number, at its place in the recording. */
function linkTo(n, text = `#${n}`) {
  return el("a", { href: `#e${n}`, class: "link", title: `Event ${n}: a link to it` }, text);
}

function facts(list) {
  return el("span", { class: "facts" }, list.filter(Boolean).map((fact) => span("fact", asText(fact))));
}

function pill(text, kind) {
  return span(`pill ${kind}`, text);
}

/** The media in a value: thumbnails if the page has the data, and otherwise the reason why not. */
function mediaBlock(value) {
  const found = mediaIn(value);
  return found.length === 0 ? null : el("div", { class: "media" }, found.map(mediaFigure));
}

const IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,/;

function mediaFigure(reference) {
  const known = Object.hasOwn(view.media, reference.id) ? view.media[reference.id] : null;
  const shown = [asText(reference.mime_type ?? reference.kind), isNumber(reference.size) ? bytes(reference.size) : null];
  const caption = el("figcaption", null, span("fact", shown.filter(Boolean).join(" · ")), span("id", reference.id));
  if (known && typeof known.uri === "string" && IMAGE.test(known.uri)) {
    const name = visible(`${clip(reference.kind)} ${reference.id}`);
    const image = el("img", { src: known.uri, alt: name, decoding: "async" });
    const open = button("", `Show ${name} in its own size`, () => enlarge(known.uri, name), "thumbnail");
    open.append(image);
    return el("figure", null, open, caption);
  }
  const absent = reference.source === "url" ? "it has an address, and was never fetched" : "its data is not beside the recording";
  caption.append(span("why", known?.left_out ?? absent));
  return el("figure", { class: "absent" }, el("span", { class: "blank", "aria-hidden": "true" }, "▨"), caption);
}

function enlarge(uri, name) {
  const dialog = document.getElementById("picture");
  dialog.replaceChildren(
    el("img", { src: uri, alt: name }),
    el("form", { method: "dialog" }, el("button", null, "Close")),
  );
  dialog.showModal();
}

/** A button, and a part of a card that it opens and closes. The part is made when it is first opened. */
function disclosure(label, title, make) {
  const holder = el("div", { class: "disclosed", hidden: true });
  const toggle = button(label, title, () => {
    const open = holder.hidden;
    if (open && !holder.firstChild) holder.append(...make());
    holder.hidden = !open;
    toggle.setAttribute("aria-expanded", String(open));
    if (open) holder.dataset.open = "";
    else delete holder.dataset.open;
  }, "toggle");
  toggle.setAttribute("aria-expanded", "false");
  return [toggle, holder];
}

function jsonOf(event) {
  return disclosure("JSON", `Event ${event.n} as JSON`, () => {
    const text = asText(event.entry);
    const note = event.type === "messages_sent" && isNumber(event.entry.since)
      ? [el("p", { class: "note" }, `Messages 1 to ${event.entry.since} were sent before and are not repeated here.`)]
      : [];
    return [...note, el("div", { class: "tools" }, copyButton(text, "Copy this JSON")), textBlock(text, "text json", PREVIEW_JSON, Infinity)];
  });
}

function offset(event) {
  const { start } = event.run.root.span;
  return event.at === null || start === null ? "time unknown" : `+${((event.at - start) / 1000).toFixed(3)} s`;
}

/** The position of an event in the tree: run, sub-runs and step. */
function whereabouts(event) {
  const names = pathOf(event.scope).slice(1);
  if (view.recording.runs.length > 1) names.unshift(`run ${event.run.index + 1}`);
  if (event.step) names.push(`step ${event.step.number}`);
  return names.join(" › ");
}

/** The card of one event in the list of events. */
function eventCard({ event }) {
  const shown = describe(event);
  const [toggle, holder] = jsonOf(event);
  const titleId = `t${event.n}`;
  const card = el("article", {
    id: `e${event.n}`, class: `card event ${kindOf(event.type).group}${event.problem ? " bad" : ""}`, tabindex: "-1",
    "aria-labelledby": titleId,
  });
  card.append(el("header", null,
    linkTo(event.n), el("h3", { id: titleId }, write(el("span"), shown.title)), facts(shown.facts),
    toggle));
  if (event.droppedBy) {
    card.classList.add("left-out");
    card.append(el("p", { class: "note" }, pill("left out", ""), " It no longer counts, since the run continues at ", linkTo(event.droppedBy.n)));
  }
  if (shown.text) card.append(textBlock(shown.text, "text", event.type === "messages_sent" ? PREVIEW_SENT : PREVIEW));
  const media = mediaBlock(event.data);
  if (media) card.append(media);
  card.append(el("footer", null, write(el("code", { class: "type" }), clip(event.type)),
    span("where", whereabouts(event)), el("time", null, offset(event))), holder);
  return card;
}
