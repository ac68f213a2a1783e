// Asking the server, and what is shown of the answers: numbers, elements.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value !== undefined && value !== null && value !== "") query.set(name, value);
  return query.size ? `${path}?${query}` : path;
}

export async function get(path, parameters, signal) {
  let response;
  try {
    response = await fetch(address(`api/${path}`, parameters), { signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the server does not answer; is `diskbuffer view` still running, and the ssh connection open?");
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, body.message ?? `the server answered ${response.status}`);
  return body;
}

export const $ = (id) => document.getElementById(id);

// element("td.number", { title: "x" }, child, "text", ...)
export function element(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function list(where, pairs) {
  where.replaceChildren(
    ...pairs.filter(Boolean).map(([name, value, more]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, String(value), more ? element("small", {}, more) : null)),
    ),
  );
}

export function facts(where, pairs) {
  where.replaceChildren(...pairs.filter(Boolean).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]));
}

const plain = new Intl.NumberFormat("en");

export function count(value) {
  return value === null || value === undefined ? "–" : plain.format(value);
}

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return plain.format(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e7) ? value.toExponential(2) : plain.format(Number(value.toPrecision(4)));
}

export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

// Say above all panels what went wrong, or, with null, that it does no more; each source for itself.
const problems = new Map();
export function failed(message, source = "panel") {
  message === null ? problems.delete(source) : problems.set(source, message);
  const text = [...problems.values()].join(" ");
  const box = $("problem");
  if (box.textContent !== text) box.textContent = text;
  box.hidden = !text;
}

// Call at most once every `pause` ms, and once more at the end; never while a call is under way.
export function throttled(call, pause) {
  let last = 0;
  let waiting = null;
  let running = false;
  const run = async () => {
    waiting = null;
    running = true;
    try {
      await call();
      failed(null);
    } catch (error) {
      if (error.status !== 503) failed(error.message); // 503: the store is gone, which the next poll tells
    } finally {
      running = false;
      last = performance.now();
    }
  };
  return () => {
    if (waiting !== null) return;
    const left = Math.max(0, last + pause - performance.now());
    waiting = setTimeout(() => (running ? ((waiting = null), setTimeout(run, pause)) : run()), left);
  };
}
