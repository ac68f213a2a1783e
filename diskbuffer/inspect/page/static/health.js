// What looks wrong in the data, in words.

import { $, element, get } from "./api.js";

let app, looked = null;

export function start(its) {
  app = its;
  $("look-again").addEventListener("click", look);
}

export function show() {
  if (app.state?.here && looked !== app.state.token) look();
}

async function look() {
  $("look-again").disabled = true;
  $("data-note").textContent = "looking at the data …";
  looked = app.state?.token ?? null;
  const found = await get("findings").catch((error) => ({ note: error.message, findings: [] }));
  $("data-note").textContent = found.note;
  $("findings").replaceChildren(...found.findings.map(({ kind, text }) => element(`li.${kind}`, {}, text)));
  $("look-again").disabled = false;
}
