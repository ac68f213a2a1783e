// What statistics and measurements find, in words.

import { $, element, get } from "./api.js";

let app, looked = null;

export function start(its) {
  app = its;
  $("look-again").addEventListener("click", () => look());
  $("measure").addEventListener("click", measure);
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

async function measure() {
  const button = $("measure");
  button.disabled = true;
  $("limits-note").textContent = "measuring, for about 20 seconds …";
  try {
    const found = await get("limits");
    $("limits-note").textContent = found.note;
    const table = element("table", {}, element("tbody", {}, ...found.parts.map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), element("td.number", {}, value)))));
    $("limits").replaceChildren(element("p.words", {}, ...found.words.map((text) => element("span", {}, `${text} `))), element("div.scroll", {}, table));
  } catch (error) {
    $("limits-note").textContent = error.message;
  } finally {
    button.disabled = false;
  }
}
