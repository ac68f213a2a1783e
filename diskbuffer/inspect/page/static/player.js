// An episode: frames to scrub through, and what was done beside them, as curves.

import { $, address, element, get, number, plural } from "./api.js";
import { Chart } from "./charts.js";

const AHEAD = 6; // frames that are asked for ahead while an episode plays
const COLOURS = ["accent", "truncated", "cut-off", "running", "mean", "soft"];
let app, episode = null, at = 0, charts = [], playing = null, loading = false;
let turn = 0, ahead = 0; // of episodes that are asked for quickly, the last counts; and how far from the one that is shown it is
let wanted = null, shown = null, busy = false, kept = [];

export function start(its) {
  app = its;
  const on = (id, event, act) => $(id).addEventListener(event, act);
  on("episode-id", "change", () => load({ id: $("episode-id").value }));
  on("previous-episode", "click", () => next(-1));
  on("next-episode", "click", () => next(1));
  on("newest-episode", "click", () => load({}));
  on("step-back", "click", () => step(-1));
  on("step-on", "click", () => step(1));
  on("play", "click", toggle);
  on("slider", "input", () => step(Number($("slider").value) - at));
  on("stacked", "change", draw);
  on("picture", "change", draw);
}

export function show() {
  const asked = app.parameters.get("id");
  if (app.state?.here && (episode === null || (asked && asked !== String(episode.episode)))) load({ id: asked });
}

export function hide() {
  pause();
}

// Another store is there.
export function forget() {
  pause();
  turn++; // what is on its way is of the one before
  [episode, at, loading] = [null, 0, false];
}

async function load(which) {
  pause();
  const mine = ++turn;
  loading = true;
  try {
    const found = await get("episode", which);
    if (mine !== turn) return;
    ahead = 0;
    set(found);
    seek(0);
    if (app.panel !== "player") return;
    history.replaceState(null, "", `#/player?id=${found.episode}`);
    app.parameters.set("id", found.episode);
  } catch (error) {
    if (mine !== turn) return;
    ahead = 0;
    tell(error.message);
  } finally {
    if (mine === turn) loading = false;
  }
}

function next(by) {
  ahead += by; // and as far as is on its way
  load(episode ? { id: episode.episode, by: ahead } : {});
}

// The episode grew, or its beginning was evicted: go on at the same step.
export async function follow() {
  if (loading) return;
  if (!episode) return show();
  if (!$("gone").hidden) draw(); // what could not be shown may be there again
  const [old, mine] = [episode, turn];
  const here = old.start + at * old.streams;
  try {
    const found = await get("episode", { step: here });
    if (mine !== turn || episode !== old || ["start", "length", "ending", "tag", "episode"].every((name) => found[name] === old[name])) return;
    set(found);
    seek(Math.round((here - found.start) / found.streams));
  } catch (error) {
    if (mine === turn && error.status === 410) tell(error.message);
  }
}

function set(found) {
  const before = episode?.curves.map((curve) => curve.name).join();
  episode = found;
  const facts = [found.streams > 1 ? `stream ${found.stream}` : null, plural(found.length, "step"), `return ${number(found.return)}`, found.ending, found.tag || null];
  $("episode-title").replaceChildren(`Episode ${found.episode}`, element("span.note", {}, facts.filter(Boolean).join(" · ")));
  $("episode-id").value = found.episode;
  $("slider").max = found.length;
  $("deck").classList.toggle("plain", !found.pictures.length);
  $("screen").hidden = !found.pictures.length;
  $("stacked").disabled = found.frame_stack < 2 || !found.pictures.length;
  $("picture-label").hidden = found.pictures.length < 2;
  const chosen = found.pictures.includes($("picture").value) ? $("picture").value : found.pictures[0];
  $("picture").replaceChildren(...found.pictures.map((name) => new Option(name, name, false, name === chosen)));
  if (before !== found.curves.map((curve) => curve.name).join()) {
    charts.forEach((chart) => chart.close());
    const boxes = found.curves.map(() => element("div.chart.curve", { role: "img" }));
    $("curves").replaceChildren(...boxes.map((box, n) => element("div", {}, element("h3", {}, found.curves[n].name), box)));
    charts = found.curves.map(({ name, discrete, series }, n) => new Chart(boxes[n], {
      label: name,
      series: series.map((_, k) => ({ name, colour: COLOURS[k % COLOURS.length], kind: discrete ? "steps" : "line", width: 1.25 })),
      click: (x) => step(Math.round(x) - at),
    }));
  }
  found.curves.forEach((curve, n) => charts[n].set([curve.x, ...curve.series], curve.words));
}

function step(by) {
  pause();
  seek(at + by);
}

function seek(to) {
  if (!episode) return;
  at = Math.min(Math.max(0, to), episode.length);
  const words = at === episode.length ? "final observation" : `${number(at)} of ${number(episode.length)}`;
  $("slider").value = at;
  $("slider").setAttribute("aria-valuetext", words);
  $("values").replaceChildren(value("step", words), ...episode.curves.map((curve) => value(curve.name, valuesAt(curve))));
  draw();
}

const value = (name, text) => element("div", {}, element("dt", { title: name }, name), element("dd", {}, text));

function valuesAt({ x, series, thinned }) {
  const n = thinned ? x.findLastIndex((one) => one <= at) : x.indexOf(at);
  if (n < 0) return "–";
  return (x[n] === at ? "" : "≈ ") + series.slice(0, 6).map((one) => number(one[n])).join(", ") + (series.length > 6 ? ", …" : "");
}

function toggle() {
  if (playing !== null) return pause();
  if (!episode) return;
  if (at >= episode.length) seek(0);
  $("play").textContent = "❚❚";
  $("play").setAttribute("aria-label", "pause");
  let before = performance.now();
  const tick = (now) => {
    const steps = Math.floor(((now - before) * Number($("speed").value)) / 1000);
    if (steps > 0 && !busy) {
      before += (steps * 1000) / Number($("speed").value);
      seek(at + Math.min(steps, 10));
      const coming = Array.from({ length: episode.pictures.length ? Math.min(AHEAD, episode.length - at) : 0 }, (_, n) => at + n + 1);
      kept = coming.map((one) => Object.assign(new Image(), { src: frame(one) }));
    }
    if (at >= episode.length && episode.ending !== "running") pause();
    else playing = requestAnimationFrame(tick);
  };
  playing = requestAnimationFrame(tick);
}

function pause() {
  cancelAnimationFrame(playing);
  playing = null;
  $("play").textContent = "▶";
  $("play").setAttribute("aria-label", "play");
}

const stacked = () => $("stacked").checked && episode.frame_stack > 1;

function frame(n) {
  const { start, streams } = episode;
  return address("frame.png", { step: start + n * streams, column: $("picture").value, stack: stacked() ? 1 : null, of: app.state.token });
}

// Show where we are. One frame is asked for at a time; of those that were wanted meanwhile, only the last.
function draw() {
  if (!episode) return;
  charts.forEach((chart) => chart.setMark(at));
  if (!episode.pictures.length) return;
  $("deck").classList.toggle("stack", stacked());
  wanted = frame(at);
  if (!busy) fetchFrame();
}

async function fetchFrame() {
  busy = true;
  while (shown !== wanted) {
    const [asked, place, image] = [wanted, at, new Image()];
    const began = performance.now();
    image.src = asked;
    try {
      await image.decode();
      Object.assign($("frame"), { src: asked, alt: `frame of step ${place} of episode ${episode?.episode}` });
      Object.assign($("deck").dataset, { at: place, took: performance.now() - began });
      $("gone").hidden = true;
    } catch {
      const answer = await fetch(asked, { cache: "no-store" }).catch(() => null);
      if (!answer) tell("no connection");
      else if (!answer.ok) tell((await answer.json().catch(() => ({}))).message ?? `the server answered ${answer.status}`);
      if (wanted === asked) break; // until it is asked for again
      continue;
    }
    shown = asked;
  }
  busy = false;
}

function tell(message) {
  $("gone-message").textContent = message;
  $("gone").hidden = $("screen").hidden = false;
  shown = null;
}

export function key(event) {
  if (event.target.closest?.("button") && (event.key === " " || event.key === "Enter")) return false;
  const far = event.shiftKey ? 10 : 1;
  const keys = {
    ArrowLeft: () => step(-far),
    ArrowRight: () => step(far),
    Home: () => step(-at),
    End: () => step(Infinity),
    " ": toggle,
    n: () => next(1),
    p: () => next(-1),
    s: () => $("stacked").click(),
  };
  keys[event.key]?.();
  return event.key in keys;
}
