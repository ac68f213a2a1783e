// Steps, episodes, returns over time, lengths, disk by column, steps a second, who writes.

import { $, count, element, facts, get, list, number, plural, throttled } from "./api.js";
import { Chart } from "./charts.js";

const seen = []; // [seconds, steps ever added, of which store], since the page was opened or the store was replaced
const KEPT = 1800;
let returns, lengths, pacing, app;

export function start(its) {
  app = its;
  returns = new Chart($("returns-chart"), {
    label: "Return of each episode",
    xName: "step",
    series: [{ name: "return", colour: "accent", kind: "points", size: 4 }, { name: "mean", colour: "mean", width: 2 }],
    click: (x) => play(x),
  });
  lengths = new Chart($("lengths-chart"), {
    label: "Length of each episode",
    xName: "step",
    yMin: 0,
    series: [{ name: "length", colour: "accent", kind: "points", size: 4 }, { name: "mean", colour: "mean", width: 2 }],
    click: (x) => play(x),
  });
  pacing = new Chart($("pace-chart"), { label: "Steps a second", yMin: 0, series: [{ name: "steps a second", colour: "accent", kind: "steps" }] });
}

let line = null;

function play(x) {
  if (!line) return;
  let best = 0;
  for (let i = 1; i < line.when.length; i++) if (Math.abs(line.when[i] - x) < Math.abs(line.when[best] - x)) best = i;
  app.go("player", { a: line.episode[best] });
}

export function pace(state) {
  if (!state.here) return;
  if (seen.length && (seen[0][2] !== state.token || state.added < seen.at(-1)[1])) seen.length = 0;
  seen.push([state.time, state.added, state.token]);
  if (seen.length > KEPT) seen.shift();
  if (app.panel === "overview") drawPace();
}

function rate(span = 10) {
  if (seen.length < 2) return null;
  const last = seen.at(-1);
  const first = seen.find(([time]) => last[0] - time <= span) ?? seen[0];
  return last[0] > first[0] ? (last[1] - first[1]) / (last[0] - first[0]) : null;
}

function drawPace() {
  const x = [];
  const y = [];
  for (let i = 1; i < seen.length; i++) {
    const took = seen[i][0] - seen[i - 1][0];
    if (took > 0) x.push(Math.round(seen[i][0] - seen[0][0])), y.push((seen[i][1] - seen[i - 1][1]) / took);
  }
  const any = y.some((value) => value > 0);
  $("pace-card").hidden = !any && !app.state?.writer;
  pacing.set(any ? [x, y] : [[], []], any ? `${number(rate())} now` : "no step was added since");
  const tile = document.querySelector("#tiles [data-pace]");
  if (tile) tile.textContent = any ? number(Math.round(rate() ?? 0)) : "0";
}

const load = throttled(async () => {
  if (!app.state?.here) return;
  const [found, points] = await Promise.all([get("overview"), get("timeline")]);
  draw(found, points);
}, 2000);

export function show() {
  load();
  drawPace();
}
export const follow = load;

function draw(found, points) {
  const { summary } = found;
  list($("tiles"), [
    ["Steps", count(summary.steps), summary.capacity ? `of ${count(summary.capacity)} that are kept` : "all are kept"],
    ["Episodes", count(summary.episodes), summary.environments > 1 ? `of ${plural(summary.environments, "environment")}` : "of one environment"],
    ["Return", number(summary.recent_return), summary.recent_episodes ? `mean of the last ${count(summary.recent_episodes)}` : "no episode has ended"],
    ["Length", number(summary.recent_length), summary.recent_episodes ? "steps, of the same" : ""],
    ["On disk", summary.disk, summary.ratio ? `instead of ${summary.raw}: ${number(Number(summary.ratio.toPrecision(2)))} times as small` : ""],
    ["Steps a second", "–", "now"],
  ]);
  $("tiles").lastElementChild.querySelector("dd").firstChild.replaceWith(element("span", { "data-pace": true }, "–"));
  drawPace();
  line = points;
  const drawn = points.thinned ? `${count(points.episode.length)} of ${count(points.matching)} are drawn; ` : "";
  $("returns-note").textContent = points.episode.length ? `${drawn}the line is the mean of the last ${count(points.window)}` : "";
  returns.set([points.when, points.return, points.means.return], words(points, "return"));
  lengths.set([points.when, points.length, points.means.length], words(points, "length"));
  const most = Math.max(...found.columns.map((column) => column.disk_bytes ?? 0), 1);
  $("columns").replaceChildren(
    element("thead", {}, element("tr", {}, ...["column", "shape", "dtype"].map((name) => element("th", { scope: "col" }, name)),
      ...["on disk", "times smaller"].map((name) => element("th.number", { scope: "col" }, name)), element("th", { scope: "col", "aria-label": "share" }))),
    element("tbody", {}, ...found.columns.map((column) => {
      const bar = element("i");
      bar.style.width = `${(100 * (column.disk_bytes ?? 0)) / most}%`;
      return element("tr", {}, element("td", {}, column.name), element("td", {}, column.shape ? column.shape.join("×") || "–" : ""), element("td", {}, column.dtype ?? ""),
        element("td.number", {}, column.disk), element("td.number", {}, column.ratio ? column.ratio.toFixed(column.ratio < 10 ? 1 : 0) : ""),
        element("td", {}, element("span.meter", { title: column.codec ?? column.kind ?? "" }, bar)));
    })),
  );
  facts($("facts"), found.facts);
}

function words(points, noun) {
  const there = points[noun].filter((value) => value !== null); // those that are drawn, the smallest and the largest of all among them
  if (!there.length) return "no episodes yet";
  let low = Infinity;
  let high = -Infinity;
  for (const value of there) (low = Math.min(low, value)), (high = Math.max(high, value));
  return `${plural(points.matching, "episode")}, ${noun} from ${number(low)} to ${number(high)}`;
}
