// One episode in the player: its frames, its curves, and where in it we are.

import { address, count, element, get, number } from "./api.js";
import { Chart } from "./charts.js";

const AHEAD = 6; // frames that are asked for ahead while an episode plays

export class Deck {
  constructor(app, name, settings, events) {
    Object.assign(this, { app, name, settings, events, episode: null, at: 0, loading: false, charts: [], playing: null, wanted: null, busy: false });
    const button = (label, text, act) => element("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    this.title = element("h2", {}, "Episode");
    this.id = element("input", { type: "text", inputmode: "numeric", size: "9", "aria-label": "id of the episode" });
    this.id.addEventListener("change", () => this.load({ id: this.id.value }));
    this.image = element("img", { alt: "" });
    this.notice = element("div.gone", { role: "status", hidden: true });
    this.screen = element("div.screen", {}, this.image, this.notice);
    this.slider = element("input", { type: "range", min: "0", max: "0", value: "0", "aria-label": `step of episode ${name.toUpperCase()}` });
    this.slider.addEventListener("input", () => {
      this.pause();
      this.seek(Number(this.slider.value));
    });
    this.playButton = button("play", "▶", () => this.toggle());
    const transport = element("div.transport", {}, button("a step back", "‹", () => this.step(-1)), this.playButton, button("a step on", "›", () => this.step(1)), this.slider);
    this.values = element("dl.values");
    this.curves = element("div.curves");
    const choose = element("div.choose", {}, this.title, element("span", {}, button("previous episode", "← previous", () => this.next(-1)), this.id, button("next episode", "next →", () => this.next(1))));
    this.root = element("section.deck.card", { "aria-label": `Episode ${name.toUpperCase()}`, id: `deck-${name}` }, choose, element("div", {}, this.screen, transport, this.values), this.curves);
    this.root.addEventListener("focusin", () => events.focus(this));
    this.root.addEventListener("pointerdown", () => events.focus(this));
  }

  forget() {
    this.pause();
    this.episode = null;
    this.at = 0;
  }

  last() {
    return this.episode ? this.episode.length : 0;
  }

  async load({ step, id, by, at }) {
    this.pause();
    this.loading = true;
    this.by = by ?? 0;
    const turn = (this.turn = (this.turn ?? 0) + 1); // of several that are asked for quickly, the last counts
    try {
      const found = await get("episode", { step, id, by });
      if (turn !== this.turn) return;
      this.by = 0;
      this.set(found);
      const asked = at ?? (step !== undefined && step !== null ? (Number(step) - found.start) / found.streams : 0);
      this.seek(Number.isFinite(Number(asked)) ? Number(asked) : 0, false);
      this.events.opened(this);
      this.draw();
    } catch (error) {
      if (turn === this.turn) this.tell(error.message);
      this.by = 0;
    } finally {
      if (turn === this.turn) this.loading = false;
    }
  }

  next(by) {
    if (this.episode) this.load({ id: this.episode.episode, by: this.by + by }); // and as far as is on its way
    else this.load({});
  }

  // The episode grew, or its beginning was evicted: go on at the same step.
  async follow() {
    if (!this.episode || this.loading || this.updating) return;
    this.updating = true;
    try {
      const old = this.episode;
      const here = old.start + this.at * old.streams;
      const found = await get("episode", { step: here });
      if (this.episode !== old) return;
      const changed = ["start", "length", "ending", "tag", "episode"].some((name) => found[name] !== old[name]);
      if (!changed) return;
      this.set(found);
      this.seek(Math.round((here - found.start) / found.streams), false);
    } catch (error) {
      if (error.status === 410) this.tell(error.message);
    } finally {
      this.updating = false;
    }
  }

  set(found) {
    this.episode = found;
    const facts = [found.streams > 1 ? `stream ${found.stream}` : null, `${count(found.length)} steps`, found.return === null ? null : `return ${number(found.return)}`, found.ending, found.tag || null];
    this.title.replaceChildren(`Episode ${found.episode}`, element("span.note", {}, facts.filter(Boolean).join(" · ")));
    this.id.value = found.episode;
    this.slider.max = found.length;
    this.root.classList.toggle("plain", !found.pictures.length);
    this.screen.hidden = !found.pictures.length;
    const names = found.curves.map((curve) => `${curve.name}:${curve.series.length}`).join();
    if (names !== this.names) {
      this.charts.forEach(({ chart }) => chart.close());
      this.charts = found.curves.map((curve) => this.chart(curve));
      this.curves.replaceChildren(...this.charts.map(({ box, name }) => element("div", {}, element("h3", {}, name), box)));
      this.curves.classList.toggle("few", this.charts.length < 4);
      this.names = names;
    }
    found.curves.forEach((curve, n) => this.charts[n].chart.set([curve.x, ...curve.series], curve.words));
  }

  chart(curve) {
    const box = element("div.chart.curve", { role: "img" });
    const colours = ["accent", "truncated", "cut-off", "running", "mean", "soft"];
    const chart = new Chart(box, {
      label: curve.name,
      series: curve.series.map((_, n) => ({ name: curve.name, colour: colours[n % colours.length], kind: curve.discrete ? "steps" : "line", width: 1.25 })),
      click: (x) => {
        this.pause();
        this.seek(Math.round(x));
      },
    });
    return { chart, box, name: curve.name };
  }

  step(by) {
    this.pause();
    this.seek(this.at + by);
  }

  seek(at, tell = true) {
    if (!this.episode) return;
    this.at = Math.min(Math.max(0, Math.round(at)), this.last());
    this.slider.value = this.at;
    this.slider.setAttribute("aria-valuetext", this.at === this.last() ? `the final observation, after ${this.at} steps` : `step ${this.at} of ${this.last()}`);
    this.draw();
    if (tell) this.events.moved(this, this.at);
  }

  toggle() {
    this.playing === null ? this.play() : this.pause();
  }

  play() {
    if (!this.episode) return;
    if (this.at >= this.last()) this.seek(0);
    this.playButton.textContent = "❚❚";
    this.playButton.setAttribute("aria-label", "pause");
    let shown = performance.now();
    const tick = (now) => {
      const steps = Math.floor(((now - shown) * this.settings.speed) / 1000);
      if (steps > 0 && !this.busy) {
        shown = now;
        this.seek(this.at + Math.min(steps, 10));
        this.askAhead();
      }
      if (this.at >= this.last() && this.episode.ending !== "running") this.pause();
      else this.playing = requestAnimationFrame(tick);
    };
    this.playing = requestAnimationFrame(tick);
  }

  pause() {
    if (this.playing === null) return;
    cancelAnimationFrame(this.playing);
    this.playing = null;
    this.playButton.textContent = "▶";
    this.playButton.setAttribute("aria-label", "play");
  }

  frame(at) {
    const { start, streams } = this.episode;
    const column = this.episode.pictures.includes(this.settings.picture) ? this.settings.picture : this.episode.pictures[0];
    const stacked = this.settings.stacked && this.episode.frame_stack > 1;
    return address("frame.png", { step: start + at * streams, column, stack: stacked ? 1 : undefined, of: this.app.state.token });
  }

  askAhead() {
    if (!this.episode.pictures.length) return;
    this.kept = [];
    for (let n = 1; n <= AHEAD && this.at + n <= this.last(); n++) {
      const image = new Image();
      image.src = this.frame(this.at + n);
      this.kept.push(image);
    }
  }

  // Show where we are. One frame is asked for at a time; of those that were wanted meanwhile, only the last.
  draw() {
    if (!this.episode) return;
    this.charts.forEach(({ chart }) => chart.setMark(this.at));
    this.drawValues();
    if (!this.episode.pictures.length) return;
    this.root.classList.toggle("stack", this.settings.stacked && this.episode.frame_stack > 1);
    this.wanted = this.frame(this.at);
    if (!this.busy) this.fetchFrame();
  }

  async fetchFrame() {
    const wanted = this.wanted;
    if (wanted === this.shown) return;
    this.busy = true;
    const asked = performance.now();
    try {
      const image = new Image();
      image.src = wanted;
      await image.decode();
      this.image.src = wanted;
      this.image.alt = `frame of step ${this.at} of episode ${this.episode?.episode}`;
      this.shown = wanted;
      this.notice.hidden = true;
      this.root.dataset.took = String(performance.now() - asked);
      this.root.dataset.at = String(this.at);
    } catch {
      this.shown = wanted;
      await this.explain(wanted);
    } finally {
      this.busy = false;
      if (this.wanted !== wanted) this.fetchFrame();
    }
  }

  async explain(wanted) {
    try {
      const response = await fetch(wanted, { cache: "no-store" });
      if (response.ok) this.shown = null;
      else this.tell((await response.json()).message);
    } catch {
      this.tell("no connection");
      this.shown = null;
    }
  }

  tell(message) {
    if (!this.episode || !this.episode.pictures.length) this.title.replaceChildren("Episode", element("span.note", {}, message));
    this.notice.replaceChildren(element("div", {}, element("p", {}, message), element("button", { type: "button", onclick: () => this.load({}) }, "Show the newest")));
    this.notice.hidden = false;
    this.screen.hidden = false;
  }

  drawValues() {
    const { curves, length } = this.episode;
    const pairs = [["step", this.at === length ? "final observation" : `${count(this.at)} of ${count(length)}`]];
    for (const curve of curves) {
      const n = nearest(curve.x, this.at);
      const there = curve.x[n] === this.at || (curve.thinned && this.at < length);
      const values = curve.series.map((one) => (there ? one[n] : null));
      const shown = values.slice(0, 6).map(number);
      pairs.push([curve.name, there ? (curve.thinned ? "≈ " : "") + shown.join(", ") + (values.length > 6 ? ", …" : "") : "–"]);
    }
    this.values.replaceChildren(...pairs.map(([name, value]) => element("div", {}, element("dt", { title: name }, name), element("dd", {}, value))));
  }
}

function nearest(sorted, x) {
  let low = 0;
  let high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - sorted[low - 1] <= sorted[low] - x ? low - 1 : low;
}
