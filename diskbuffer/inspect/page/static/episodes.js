// A time line of the episodes and a table; a filter, and the commands for what it selects.

import { $, element, get, number, plural, throttled } from "./api.js";
import { Chart } from "./charts.js";

const ENDINGS = ["terminated", "truncated", "cut off", "running"]; // each has a colour, in page.css
const PAGE = 50;
let app, chart, points;
let where = "", sort = "ended", descending = true, offset = 0;

export function start(its) {
  app = its;
  chart = new Chart($("timeline"), {
    label: "Time line of episodes",
    series: ENDINGS.map((name) => ({ name, colour: name.replace(" ", "-"), kind: "points" })),
    click: play,
    select: (from, to) => filter(`${where ? `(${where}) and ` : ""}ended >= ${Math.ceil(from)} and ended <= ${Math.floor(to)}`),
  });
  $("filter").addEventListener("submit", (event) => {
    event.preventDefault();
    filter($("where").value);
  });
  $("where-clear").addEventListener("click", () => filter(""));
  $("timeline-value").addEventListener("change", drawLine);
  $("previous-page").addEventListener("click", () => turn(-PAGE));
  $("next-page").addEventListener("click", () => turn(PAGE));
}

function filter(text) {
  text = text.trim();
  $("where").value = text;
  app.go("episodes", text ? { where: text } : {});
  if (text === where) show();
}

function turn(by) {
  offset = Math.max(0, offset + by);
  follow();
}

export function show() {
  const asked = app.parameters.get("where") ?? "";
  if (asked !== where) offset = 0;
  where = asked;
  if (document.activeElement !== $("where")) $("where").value = where;
  follow();
}

export const follow = throttled(async () => {
  if (!app.state?.here) return;
  try {
    const [table, line] = await Promise.all([get("episodes", { where, sort, descending, offset, limit: PAGE }), get("timeline", { where })]);
    points = line;
    drawTable(table);
    drawLine();
    complain("");
  } catch (problem) {
    if (problem.status !== 400) throw problem;
    complain(problem.message);
  }
}, 400);

function complain(message) {
  $("where-error").textContent = message;
  $("where-error").hidden = !message;
  $("where").setAttribute("aria-invalid", String(Boolean(message)));
}

function drawLine() {
  if (!points) return;
  const values = points[$("timeline-value").value];
  const split = ENDINGS.map((ending) => values.map((value, n) => (points.ending[n] === ending ? value : null)));
  const [all, drawn] = [points.matching < points.total ? ` of ${number(points.total)}` : "", points.episode.length];
  $("timeline-note").textContent = plural(points.matching, "episode") + all + (drawn < points.matching ? `, ${number(drawn)} of them drawn` : "");
  const there = ENDINGS.filter((ending) => points.ending.includes(ending));
  $("timeline-legend").replaceChildren(...there.map((name) => element(`span.ending.${name.replace(" ", "-")}`, {}, name)));
  chart.set([points.ended, ...split], points.matching ? plural(points.matching, "episode") : where ? "no episode is like that" : "no episodes yet");
}

function play(x, y, plot) {
  const at = (value, scale) => plot.valToPos(value ?? 0, scale);
  const values = points[$("timeline-value").value];
  const far = points.ended.map((ended, n) => Math.hypot(at(ended, "x") - at(x, "x"), at(values[n], "y") - at(y, "y")));
  app.go("player", { id: points.episode[far.indexOf(Math.min(...far))] });
}

function drawTable(table) {
  offset = table.offset;
  const order = (name) => {
    descending = sort === name ? !descending : true;
    sort = name;
    turn(-Infinity);
  };
  const kind = (name) => (table.numbers.includes(name) ? ".number" : "");
  const direction = (name) => (sort !== name ? "none" : descending ? "descending" : "ascending");
  const head = table.columns.map((name) =>
    element(`th${kind(name)}`, { scope: "col", "aria-sort": direction(name) }, element("button", { type: "button", title: name === "ended" ? "steps that all environments had added when it ended" : "", onclick: () => order(name) }, name)));
  const rows = table.rows.map((row) => {
    const cells = table.columns.map((name) => element(`td${kind(name)}`, {}, cell(name, row[name])));
    return element("tr", { onclick: (event) => event.target.closest("a") ?? app.go("player", { id: row.episode }) }, ...cells);
  });
  $("episode-table").replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
  $("where-help").textContent = `Known: ${table.known.join(", ")}; ==, !=, <, <=, >, >=, and, or, not, in. For example: return > 10 and ending == 'terminated'`;
  $("page-note").textContent = table.matching ? `${number(offset + 1)} to ${number(offset + table.rows.length)} of ${number(table.matching)}` : "none";
  $("previous-page").disabled = offset === 0;
  $("next-page").disabled = offset + table.rows.length >= table.matching;
  $("selected").hidden = !table.commands.length;
  $("commands").replaceChildren(...table.commands.flatMap(([what, text]) => [element("dt", {}, what), element("dd", {}, element("pre", { tabindex: 0 }, text))]));
}

function cell(name, value) {
  if (name === "episode") return element("a", { href: `#/player?id=${value}` }, String(value));
  if (name === "ending") return element(`span.ending.${value.replace(" ", "-")}`, {}, value);
  return number(value);
}
