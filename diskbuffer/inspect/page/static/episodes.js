// A time line of the episodes and a table; a filter; and the commands for what is selected.

import { $, count, element, get, number, plural, throttled } from "./api.js";
import { Chart } from "./charts.js";

const ENDINGS = ["terminated", "truncated", "cut off", "running"]; // each has a colour, in page.css
const PAGE = 50;
const MOST = 5000; // episodes in a selection: their names are in the commands
const LONGEST = 1996; // characters of a condition, which takes 2000, "not" among them
const chosen = new Set(); // ids of episodes
const running = new Set(); // of those, the ones that are not over
let app, chart, points = null;
let where = "", sort = "ended", descending = true, offset = 0, selectable = null;

export function start(its) {
  app = its;
  chart = new Chart($("timeline"), {
    label: "Time line of episodes",
    xName: "step",
    series: ENDINGS.map((name) => ({ name, colour: name.replace(" ", "-"), kind: "points", size: 5 })),
    click: (x, y) => play(x, y),
    select: (from, to) => choose(from, to),
  });
  $("filter").addEventListener("submit", (event) => {
    event.preventDefault();
    filter($("where").value);
  });
  $("where-clear").addEventListener("click", () => {
    $("where").value = "";
    filter("");
  });
  $("timeline-value").addEventListener("change", drawLine);
  $("previous-page").addEventListener("click", () => turn(-PAGE));
  $("next-page").addEventListener("click", () => turn(PAGE));
  $("chosen-clear").addEventListener("click", () => {
    chosen.clear();
    drawChosen();
    load();
  });
  $("tag-name").addEventListener("input", drawChosen);
}

function note(episode, ending) {
  ending === "running" ? running.add(episode) : running.delete(episode);
}

function filter(text) {
  offset = 0;
  app.go("episodes", text.trim() ? { where: text.trim() } : {});
  if (text.trim() === where) load();
}

function turn(by) {
  offset = Math.max(0, offset + by);
  load();
}

export function show() {
  const asked = app.parameters.get("where") ?? "";
  if (asked !== where) offset = 0;
  where = asked;
  if (document.activeElement !== $("where")) $("where").value = where;
  if (app.state && selectable !== app.state.token) {
    selectable = app.state.token;
    chosen.clear(); // another store's
  }
  load();
}

const load = throttled(async () => {
  if (!app.state?.here) return;
  const error = $("where-error");
  try {
    const [table, line] = await Promise.all([get("episodes", { where, sort, descending, offset, limit: PAGE }), get("timeline", { where })]);
    error.hidden = true;
    $("where").removeAttribute("aria-invalid");
    points = line;
    drawTable(table);
    drawLine();
    drawChosen();
  } catch (problem) {
    if (problem.status === 400) {
      error.textContent = problem.message;
      error.hidden = false;
      $("where").setAttribute("aria-invalid", "true");
    } else throw problem;
  }
}, 400);
export const follow = throttled(() => load(), 2000);

function drawLine() {
  if (!points) return;
  const values = points[$("timeline-value").value];
  const split = ENDINGS.map((ending) => values.map((value, n) => (points.ending[n] === ending ? value : null)));
  $("timeline-note").textContent =
    `${plural(points.matching, "episode")}${points.matching === points.total ? "" : ` of ${count(points.total)}`}` +
    (points.thinned ? `, ${count(points.episode.length)} of them drawn` : "");
  const there = ENDINGS.filter((ending) => points.ending.includes(ending));
  $("timeline-legend").replaceChildren(...there.map((name) => element(`span.ending.${name.replace(" ", "-")}`, {}, name)));
  chart.set([points.when, ...split], points.matching ? plural(points.matching, "episode") : where ? "no episode is like that" : "no episodes yet");
}

function play(x, y) {
  const values = points[$("timeline-value").value];
  const box = chart.plot;
  let best = -1;
  let nearest = Infinity;
  for (let n = 0; n < points.episode.length; n++) {
    const far = Math.hypot(box.valToPos(points.when[n], "x") - box.valToPos(x, "x"), box.valToPos(values[n] ?? 0, "y") - box.valToPos(y, "y"));
    if (far < nearest) (nearest = far), (best = n);
  }
  if (best >= 0) app.go("player", { a: points.episode[best] });
}

async function choose(from, to) {
  const inside = await get("chosen", { where, first: from, last: to, limit: MOST });
  inside.episode.forEach((episode, n) => {
    note(episode, inside.ending[n]);
    if (chosen.size < MOST) chosen.add(episode);
  });
  drawChosen();
  load();
}

function drawTable(table) {
  offset = table.offset;
  const order = (name) => {
    descending = sort === name ? !descending : true;
    sort = name;
    offset = 0;
    load();
  };
  const head = table.columns.map((name) =>
    element(table.numbers.includes(name) ? "th.number" : "th", { scope: "col", "aria-sort": sort === name ? (descending ? "descending" : "ascending") : "none" },
      element("button", { type: "button", onclick: () => order(name) }, name)));
  const all = element("input", { type: "checkbox", "aria-label": "select all on this page" });
  all.checked = table.rows.length > 0 && table.rows.every((row) => chosen.has(row.episode));
  all.addEventListener("change", () => {
    for (const row of table.rows) all.checked ? chosen.add(row.episode) : chosen.delete(row.episode);
    drawTable(table);
    drawChosen();
  });
  const rows = table.rows.map((row) => {
    note(row.episode, row.ending);
    const box = element("input", { type: "checkbox", "aria-label": `select episode ${row.episode}` });
    box.checked = chosen.has(row.episode);
    const line = element("tr", {}, element("td", {}, box), ...table.columns.map((name) => cell(table, row, name)));
    line.classList.toggle("picked", box.checked);
    box.addEventListener("change", () => {
      box.checked ? chosen.add(row.episode) : chosen.delete(row.episode);
      line.classList.toggle("picked", box.checked);
      drawChosen();
    });
    line.addEventListener("click", (event) => event.target.closest("input, a") ?? app.go("player", { a: row.episode }));
    return line;
  });
  const focused = document.activeElement?.closest?.("#episode-table") && document.activeElement.getAttribute("aria-label");
  $("episode-table").replaceChildren(element("thead", {}, element("tr", {}, element("th", {}, all), ...head)), element("tbody", {}, ...rows));
  if (focused) document.querySelector(`#episode-table [aria-label="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  $("where-help").textContent = `Known: ${table.known.join(", ")}; ==, !=, <, <=, >, >=, and, or, not, in. For example: return > 10 and ending == 'terminated'`;
  $("page-note").textContent = table.matching ? `${count(table.offset + 1)} to ${count(table.offset + table.rows.length)} of ${count(table.matching)}` : "none";
  const newest = sort === "ended" && descending;
  $("previous-page").textContent = newest ? "Newer" : "Back";
  $("next-page").textContent = newest ? "Older" : "On";
  $("previous-page").disabled = table.offset === 0;
  $("next-page").disabled = table.offset + table.rows.length >= table.matching;
}

function cell(table, row, name) {
  if (name === "episode") return element("td.number", {}, element("a", { href: `#/player?a=${row.episode}` }, String(row.episode)));
  if (name === "ending") return element("td", {}, element(`span.ending.${row.ending.replace(" ", "-")}`, {}, row.ending));
  return element(table.numbers.includes(name) ? "td.number" : "td", {}, table.plain.includes(name) ? String(row[name]) : number(row[name]));
}

const quoted = (text) => JSON.stringify(text); // JSON's strings are Python's, too
const inShell = (text) => `'${text.replaceAll("'", `'"'"'`)}'`;

function drawChosen() {
  $("chosen").hidden = chosen.size === 0;
  if (!chosen.size) return;
  const ids = [...chosen].sort((a, b) => a - b);
  $("chosen-count").textContent = `${plural(chosen.size, "episode")} selected${chosen.size === MOST ? ", which is the most" : ""}`;
  const { literal, shell, name } = app.state;
  const names = `[${ids.join(", ")}]`;
  const over = `[${ids.filter((id) => !running.has(id)).join(", ")}]`; // only these can be tagged
  const where = `episode in ${names}`;
  const short = where.length <= LONGEST;
  const tag = $("tag-name").value;
  const commands = [
    short && !tag.startsWith("-")
      ? ["Tag them (in the process that writes: set_tag of its own buffer's episodes)", `diskbuffer tag ${shell} ${inShell(tag)} --where '${where}'`]
      : ["Tag them (in the process that writes, use its own buffer)", `import diskbuffer as db, numpy as np\n\nwith db.ReplayBuffer(${literal}, mode="r+") as buffer:\n    episodes = buffer.episodes\n    episodes[np.isin(episodes.id, ${over})].set_tag(${quoted(tag)})`],
    short ? ["Copy them to a store of their own", `diskbuffer copy ${shell} ./${inShell(`${name}-chosen`)} --where '${where}'`] : null,
    short ? ["Make a store without them", `diskbuffer copy ${shell} ./${inShell(`${name}-others`)} --where 'episode not in ${names}'`] : null,
    ["Export them, one file each", `import diskbuffer as db, numpy as np\nfrom diskbuffer.nested import flatten\n\nwith db.ReplayBuffer(${literal}, mode="r") as buffer:\n    for episode in buffer.episodes[np.isin(buffer.episodes.id, ${names})]:\n        arrays = {path.replace("/", "."): values.numpy() for path, values in flatten(buffer.episode(episode)).items()}\n        np.savez_compressed(f"episode-{episode.id}.npz", **arrays)`],
    ids.length === 1 ? ["As a video", `diskbuffer show ${shell} ${ids[0]} --out episode-${ids[0]}.mp4`] : null,
  ].filter(Boolean);
  $("commands").replaceChildren(...commands.map(([what, text]) => {
    const copy = element("button.quiet", { type: "button" }, "Copy");
    copy.addEventListener("click", async () => {
      await copyText(text);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
    return element("div.command", {}, element("div", {}, element("span", {}, what), copy), element("pre", { tabindex: "0" }, text));
  }));
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", {}, text); // where the clipboard is not allowed
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
