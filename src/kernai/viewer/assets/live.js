// Follows a run in progress: repeatedly requests new events from the server of this page.

const MOST_WAIT = 5000;

class Live {
  constructor(address) {
    this.address = address;
    this.generation = null;
    this.seen = "";
    this.label = document.getElementById("connection");
    this.label.hidden = false;
    const stay = document.getElementById("stay");
    stay.hidden = false;
    stay.addEventListener("click", () => view.stay(!view.stays));
  }

  async run() {
    for (let wait = 500; ;) {
      try {
        const query = new URLSearchParams({ seen: this.seen });
        const answer = await fetch(`${this.address}?${query}`, { cache: "no-store" });
        if (answer.status === 403 || answer.status === 404) {
          this.show("lost", "This address is no longer served");
          return;
        }
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        this.take(await answer.json());
        wait = 500;
      } catch {
        this.show("lost", "Connection lost, trying again");
        this.seen = this.seen.replace(/!?$/, "!"); // so that the server answers at once when it is back
        await new Promise((resolve) => setTimeout(resolve, wait));
        wait = Math.min(MOST_WAIT, wait * 2);
      }
    }
  }

  take(news) {
    const begunAnew = this.generation !== null && news.generation !== this.generation;
    if (begunAnew) view.reset();
    this.generation = news.generation;
    this.seen = news.seen;
    Object.assign(view.media, news.media);
    for (const record of news.records) view.recording.add(record);
    const pictures = Object.keys(news.media).length > 0;
    if (begunAnew || pictures || news.records.length > 0) view.refresh(pictures);
    if (view.wanted !== null && view.goTo(view.wanted)) view.wanted = null;
    if (news.waiting) this.show("waiting", news.waiting);
    else this.show("live", this.over() ? "Following: the run is over" : "Following");
  }

  over() {
    const { runs } = view.recording;
    return runs.length > 0 && runs.every(({ root }) => root.result && !isWaiting(root.result.data));
  }

  show(state, text) {
    this.label.dataset.state = state;
    if (this.label.textContent !== text) this.label.textContent = text;
  }
}
