// One or two episodes: frames to scrub through, and what was done beside them, as curves.

import { $ } from "./api.js";
import { Deck } from "./deck.js";

let app, decks = [], focused = 0, chosen = { a: null, b: null }, token = null;
const settings = { stacked: false, picture: null, speed: 30, together: true };

export function start(its) {
  app = its;
  decks = ["a", "b"].map((name) => new Deck(app, name, settings, { moved, focus, opened }));
  $("decks").append(decks[0].root);
  $("two").addEventListener("change", () => two($("two").checked));
  $("together").addEventListener("change", () => (settings.together = $("together").checked));
  $("stacked").addEventListener("change", () => {
    settings.stacked = $("stacked").checked;
    open().forEach((deck) => deck.draw());
  });
  $("picture").addEventListener("change", () => {
    settings.picture = $("picture").value;
    open().forEach((deck) => deck.draw());
  });
  $("speed").addEventListener("change", () => (settings.speed = Number($("speed").value)));
}

const open = () => decks.filter((deck) => deck.root.isConnected);

function two(on) {
  $("two").checked = on;
  $("together-label").hidden = !on;
  $("decks").classList.toggle("two", on);
  if (on && !decks[1].root.isConnected) {
    $("decks").append(decks[1].root);
    if (decks[1].episode === null) decks[1].load(decks[0].episode ? { id: decks[0].episode.episode, by: -1 } : {});
  } else if (!on && decks[1].root.isConnected) {
    decks[1].pause();
    decks[1].root.remove();
    focused = 0;
    remember();
  }
}

export function show() {
  if (app.state && token !== app.state.token) {
    if (token !== null) decks.forEach((deck) => deck.forget());
    token = app.state.token;
  }
  if (!app.state?.here) return;
  for (const [n, name] of ["a", "b"].entries()) {
    const asked = app.parameters.get(name);
    if (name === "b" && asked) two(true);
    if (asked !== null && asked !== chosen[name]) {
      chosen[name] = asked;
      decks[n].load({ id: asked, at: app.parameters.get(`${name}at`) });
    }
  }
  if (decks[0].episode === null && !decks[0].loading) decks[0].load({});
}

export function hide() {
  decks.forEach((deck) => deck.pause());
}

export function follow() {
  open().forEach((deck) => deck.follow());
}

// What is shown goes into the address, without a new entry in the browser's history.
function remember() {
  const parameters = new URLSearchParams();
  for (const [n, name] of ["a", "b"].entries()) {
    const deck = decks[n];
    if (deck.root.isConnected && deck.episode) {
      chosen[name] = String(deck.episode.episode);
      parameters.set(name, chosen[name]);
    } else chosen[name] = null;
  }
  if (app.panel === "player") history.replaceState(null, "", `#/player?${parameters}`);
}

function opened(deck) {
  const pictures = deck.episode.pictures;
  if (!pictures.includes(settings.picture)) settings.picture = pictures[0] ?? null;
  $("picture").replaceChildren(...pictures.map((name) => new Option(name, name, false, name === settings.picture)));
  $("picture-label").hidden = pictures.length < 2;
  $("stacked").disabled = deck.episode.frame_stack < 2 || !pictures.length;
  remember();
}

function moved(deck, at) {
  if (settings.together) for (const other of open()) if (other !== deck) other.seek(Math.min(at, other.last()), false);
}

function focus(deck) {
  focused = decks.indexOf(deck);
}

export function key(event) {
  const deck = decks[focused].root.isConnected ? decks[focused] : decks[0];
  if (event.target.closest?.("button") && (event.key === " " || event.key === "Enter")) return false;
  const far = event.shiftKey ? 10 : 1;
  const keys = {
    ArrowLeft: () => deck.step(-far),
    ArrowRight: () => deck.step(far),
    Home: () => deck.seek(0),
    End: () => deck.seek(deck.last()),
    " ": () => deck.toggle(),
    n: () => deck.next(1),
    p: () => deck.next(-1),
    s: () => $("stacked").disabled || $("stacked").click(),
    b: () => two(!$("two").checked),
  };
  keys[event.key]?.();
  return event.key in keys;
}
