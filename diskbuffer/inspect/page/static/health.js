// What statistics find, in words.

import { $, element, get } from "./api.js";

let app, looked = null;

export function start(its) {
  app = its;
  $("look-again").addEventListener("click", () => look());
}

export function show() {
  if (app.state?.here && looked !== app.state.token) look();
}

async function look() {
  const button = $("look-again");
  button.disabled = true;
  looked = app.state?.token ?? null;
  $("data-note").textContent = "looking at the data …";
  try {
    const found = await get("findings");
    $("data-note").textContent = found.note;
    $("findings").replaceChildren(...found.findings.map(({ kind, text }) => element(`li.${kind}`, {}, text)));
  } catch (error) {
    $("data-note").textContent = error.message;
    $("findings").replaceChildren();
    looked = null;
  } finally {
    button.disabled = false;
  }
}
