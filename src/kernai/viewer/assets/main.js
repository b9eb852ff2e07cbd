// Starts the page: reads its data, builds the view, and shows the event that the address names.

function main() {
  const data = JSON.parse(document.getElementById("data").textContent);
  view.media = data.media;
  view.live = data.live === null ? null : new Live(data.live);
  const events = document.getElementById("events");
  const conversation = document.getElementById("conversation");
  const tree = document.getElementById("tree");
  view.lists.events = new List(document.getElementById("panel-events"), events, eventCard, 130);
  view.lists.conversation = new List(document.getElementById("panel-conversation"), conversation, conversationCard, 260);
  view.timeline = new Timeline(document.getElementById("panel-timeline"), tree, document.getElementById("axis"));
  new Splitter(document.getElementById("splitter"), document.querySelector(".panes"), () => view.timeline.drawAxis());
  view.filters = new Filters(() => view.refilter());
  view.search = new Search(() => view.refreshLists(true));
  for (const record of data.records) view.recording.add(record);
  view.open(view.tab);
  view.refresh();
  listen();
  onHash();
  document.body.dataset.ready = "";
  if (view.live) view.live.run();
}

main();
