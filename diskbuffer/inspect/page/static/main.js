// The page around the panels: what is watched, keys. The state is in the address's fragment, so that a link leads to a place.

import { $, failed, get, number } from "./api.js";
import * as episodes from "./episodes.js";
import * as health from "./health.js";
import * as overview from "./overview.js";
import * as player from "./player.js";

const panels = { overview, episodes, player, health };
const names = Object.keys(panels);
const last = {}; // the parameters with which each panel was shown
const app = { state: null, token: null, panel: null, go, parameters: new URLSearchParams() };
const POLL = 1000;

function go(name, parameters = last[name] ?? {}) {
  const query = new URLSearchParams(parameters);
  location.hash = `/${name}${query.size ? `?${query}` : ""}`;
}

function show() {
  const [asked, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = names.includes(asked) ? asked : "overview";
  last[name] = app.parameters = new URLSearchParams(query ?? "");
  if (app.panel !== name) {
    panels[app.panel]?.hide?.();
    failed(null);
  }
  app.panel = name;
  for (const other of names) {
    $(other).hidden = other !== name;
    const tab = $(`tab-${other}`);
    tab.setAttribute("aria-selected", String(other === name));
    tab.tabIndex = other === name ? 0 : -1;
  }
  panels[name].show(app);
}

function describe(state) {
  $("name").textContent = state.name;
  $("path").textContent = state.path;
  $("path").title = state.path;
  document.title = `${state.name} – diskbuffer`;
  const status = $("status");
  status.classList.toggle("live", Boolean(state.here && state.writer));
  status.classList.toggle("lost", !state.here);
  status.querySelector(".text").textContent = !state.here
    ? "nothing to show"
    : state.writer
      ? `being written by process ${state.writer.pid ?? "?"}`
      : `${number(state.steps)} steps, nobody writes`;
  failed(state.here ? null : state.message, "store");
}

async function poll() {
  try {
    const state = await get("state");
    const before = app.state;
    app.state = state;
    if (state.here && state.token !== app.token) {
      if (app.token) {
        delete last.player; // with an episode of the store that was there before
        if (app.panel === "player") history.replaceState(null, "", "#/player");
        player.forget();
      }
      app.token = state.token;
    }
    describe(state);
    overview.pace(state);
    if (!before || before.token !== state.token || before.here !== state.here) show();
    else if (state.here && before.version !== state.version) panels[app.panel].follow?.(app);
  } catch (error) {
    $("status").classList.add("lost");
    $("status").querySelector(".text").textContent = "no connection";
    failed(error.status === 404 ? "`diskbuffer view` was started anew: open the address that it printed." : error.message, "store");
    app.state = app.state && { ...app.state, version: -1 };
  }
  setTimeout(poll, document.hidden ? 5 * POLL : POLL);
}

const typing = (target) => target.closest("input:not([type=range]):not([type=checkbox]), select, textarea, dialog") !== null;

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  if (event.target.getAttribute?.("role") === "tab" && ["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) {
    const at = names.indexOf(app.panel);
    const to = { ArrowLeft: at - 1 + names.length, ArrowRight: at + 1, Home: 0, End: names.length - 1 }[event.key] % names.length;
    go(names[to]);
    $(`tab-${names[to]}`).focus();
  } else if (event.key >= "1" && event.key <= String(names.length)) go(names[event.key - 1]);
  else if (event.key === "?") $("help").showModal();
  else if (event.key === "/") {
    go("episodes");
    setTimeout(() => $("where").focus());
  } else if (!panels[app.panel].key?.(event)) return;
  event.preventDefault();
}

for (const name of names) $(`tab-${name}`).addEventListener("click", () => go(name));
$("help-button").addEventListener("click", () => $("help").showModal());
document.addEventListener("keydown", key);
window.addEventListener("hashchange", show);
for (const panel of Object.values(panels)) panel.start?.(app);
show();
poll();
