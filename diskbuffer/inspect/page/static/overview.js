// Steps, episodes, returns over time, lengths, disk by column, steps a second, who writes.

import { $, element, get, number, plural, throttled } from "./api.js";
import { Chart } from "./charts.js";

const seen = []; // [seconds, steps ever added, of which store], since the page was opened or the store was replaced
const KEPT = 1800;
let app, returns, lengths, pacing, points;

export function start(its) {
  app = its;
  const chart = (id, label, name, yMin) =>
    new Chart($(id), { label, yMin, click: play, series: [{ name, colour: "accent", kind: "points" }, { name: "mean", colour: "mean", width: 2 }] });
  returns = chart("returns-chart", "Return of each episode", "return");
  lengths = chart("lengths-chart", "Length of each episode", "length", 0);
  pacing = new Chart($("pace-chart"), { label: "Steps a second", yMin: 0, series: [{ name: "steps a second", colour: "accent", kind: "steps" }] });
}

function play(x) {
  const far = points.ended.map((ended) => Math.abs(ended - x));
  app.go("player", { id: points.episode[far.indexOf(Math.min(...far))] });
}

export function pace(state) {
  if (!state.here) return;
  if (seen.length && (seen[0][2] !== state.token || state.added < seen.at(-1)[1])) seen.length = 0;
  seen.push([state.time, state.added, state.token]);
  if (seen.length > KEPT) seen.shift();
  if (app.panel === "overview") drawPace();
}

const rate = (from, to) => (to[0] > from[0] ? (to[1] - from[1]) / (to[0] - from[0]) : 0);

function drawPace() {
  if (!seen.length) return;
  const y = seen.slice(1).map((one, n) => rate(seen[n], one));
  const any = y.some((value) => value > 0);
  const now = number(Math.round(rate(seen.at(-10) ?? seen[0], seen.at(-1))));
  $("pace-card").hidden = !any && !app.state?.writer;
  pacing.set(any ? [seen.slice(1).map(([time]) => Math.round(time - seen[0][0])), y] : [[], []], any ? `${now} now` : "no step was added since");
  if ($("pace")) $("pace").textContent = now;
}

export const follow = throttled(async () => {
  if (!app.state?.here) return;
  const [found, line] = await Promise.all([get("overview"), get("timeline")]);
  points = line;
  draw(found);
}, 2000);

export function show() {
  follow();
  drawPace();
}

function draw({ summary, columns, facts }) {
  const tiles = [
    ["Steps", number(summary.steps), summary.capacity ? `of ${number(summary.capacity)} that are kept` : "all are kept"],
    ["Episodes", number(summary.episodes), summary.environments > 1 ? `of ${plural(summary.environments, "environment")}` : "of one environment"],
    ["Return", number(summary.recent_returns), summary.recent_episodes ? `mean of the last ${number(summary.recent_episodes)}` : "no episode has ended"],
    ["Length", number(summary.recent_lengths), summary.recent_episodes ? "steps, of the same" : ""],
    ["On disk", summary.disk, `for ${summary.raw} of rows`],
    ["Steps a second", element("span", { id: "pace" }, "–"), "now"],
  ];
  const tile = ([name, value, more]) => element("div", {}, element("dt", {}, name), element("dd", {}, value, element("small", {}, more)));
  $("tiles").replaceChildren(...tiles.map(tile));
  drawPace();
  const some = points.episode.length < points.matching ? `${number(points.episode.length)} of ${number(points.matching)} are drawn; ` : "";
  $("returns-note").textContent = points.matching ? `${some}the line is the mean of the last ${number(points.window)}` : "";
  returns.set([points.ended, points.return, points.means.return], words("return"));
  lengths.set([points.ended, points.length, points.means.length], words("length"));
  const most = Math.max(...columns.map((column) => column.disk_bytes), 1);
  const row = (column) => {
    const bar = element("i");
    bar.style.width = `${(100 * column.disk_bytes) / most}%`;
    const cells = [column.name, column.shape?.join("×") || (column.dtype ? "one number" : ""), column.dtype ?? ""].map((text) => element("td", {}, text));
    const numbers = [column.disk, column.ratio ? number(Number(column.ratio.toPrecision(2))) : ""].map((text) => element("td.number", {}, text));
    return element("tr", {}, ...cells, ...numbers, element("td", {}, element("span.meter", { title: column.codec ?? column.kind }, bar)));
  };
  $("columns").tBodies[0].replaceChildren(...columns.map(row));
  $("facts").replaceChildren(...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function words(noun) {
  const there = points[noun].filter((value) => value !== null); // those that are drawn, the smallest and the largest of all among them
  if (!there.length) return "no episodes yet";
  return `${plural(points.matching, "episode")}, ${noun} from ${number(Math.min(...there))} to ${number(Math.max(...there))}`;
}
