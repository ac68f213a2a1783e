// What a sampler draws: how old, how often.

import { $, count, element, get, number, plural } from "./api.js";
import { Chart } from "./charts.js";

let ages, times, app, samplers = null, drawn = null;

export function start(its) {
  app = its;
  ages = new Chart($("ages-chart"), {
    label: "Share of the draws, by age",
    xName: "age",
    yMin: 0,
    series: [{ name: "drawn", colour: "accent", kind: "steps", width: 2 }, { name: "every step as often", colour: "soft", kind: "steps", width: 1 }],
  });
  times = new Chart($("times-chart"), { label: "How often each step was drawn", xName: "times", yMin: 0, series: [{ name: "steps", colour: "accent", kind: "bars" }] });
  $("sampler").addEventListener("change", options);
  $("sampler-form").addEventListener("submit", (event) => {
    event.preventDefault();
    draw();
  });
}

export async function show() {
  if (!app.state?.here) return;
  if (samplers === null) {
    samplers = (await get("samplers")).samplers;
    $("sampler").replaceChildren(...samplers.map(({ name, title }) => new Option(title, name)));
    options();
  }
  if (drawn !== app.state.token) draw();
}

function options() {
  const sampler = samplers.find(({ name }) => name === $("sampler").value);
  $("sampler-options").replaceChildren(
    ...sampler.options.map(({ name, title, value, step }) => element("label", {}, `${title} `, element("input", { type: "number", name, value, step, min: 0 }))),
  );
}

async function draw() {
  if (!app.state?.here) return;
  const button = $("sampler-form").querySelector("button");
  const parameters = { sampler: $("sampler").value, batch_size: $("batch-size").value, batches: $("batches").value };
  for (const input of $("sampler-options").querySelectorAll("input")) parameters[input.name] = input.value;
  button.disabled = true;
  $("sampling-note").classList.remove("error");
  $("sampling-note").textContent = "drawing … (the first time, the sampler's code is loaded, which takes some seconds)";
  drawn = app.state.token;
  try {
    const found = await get("sampling", parameters);
    $("sampling-note").textContent = `${found.sampler}: ${plural(found.batches, "batch").replace("batchs", "batches")} of ${count(found.batch_size)} from ${plural(found.steps, "step")}, drawn here in ${number(found.seconds)} s`;
    $("sampling-words").textContent = found.words.join(" ");
    ages.set([found.ages.age, found.ages.drawn, found.ages.even], `half of what is drawn is younger than ${count(found.ages.median)} steps`);
    $("ages-note").textContent = found.ages.note;
    times.set([found.times.times, found.times.steps], `from ${number(found.times.times[0])} to ${number(found.times.times.at(-1))} times`);
    $("times-note").textContent = found.times.note;
  } catch (error) {
    $("sampling-note").classList.add("error");
    $("sampling-note").textContent = error.message;
    $("sampling-words").textContent = "";
    ages.set([[], [], []], "nothing was drawn");
    times.set([[], []], "nothing was drawn");
    if (!error.status || error.status === 503) drawn = null;
  } finally {
    button.disabled = false;
  }
}
