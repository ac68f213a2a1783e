// Asking the server, and what is shown of the answers: numbers, elements.

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function address(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export async function get(path, parameters) {
  const response = await fetch(address(`api/${path}`, parameters), { cache: "no-store" }).catch(() => {
    throw new ApiError(0, "the server does not answer; is `diskbuffer view` still running, and the ssh connection open?");
  });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, body.message ?? `the server answered ${response.status}`);
  return body;
}

export const $ = (id) => document.getElementById(id);

// element("td.number", { title: "x", onclick: act }, child, "text", ...)
export function element(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const whole = new Intl.NumberFormat("en");
const four = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return whole.format(value);
  const size = Math.abs(value);
  return size < 0.001 || size >= 1e7 ? value.toExponential(2) : four.format(value);
}

export const plural = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;

// Say above all panels what went wrong, or, with null, that it does no more; each source for itself.
const problems = new Map();
export function failed(message, source = "panel") {
  message === null ? problems.delete(source) : problems.set(source, message);
  const text = [...problems.values()].join(" ");
  if ($("problem").textContent !== text) $("problem").textContent = text;
  $("problem").hidden = !text;
}

// Call now, or once `pause` ms are over since the last call ended; once for all that asked meanwhile.
export function throttled(call, pause) {
  let wanted = false;
  let running = false;
  return async () => {
    wanted = true;
    if (running) return;
    running = true;
    while (wanted) {
      wanted = false;
      await call().then(
        () => failed(null),
        (error) => error.status === 503 || failed(error.message), // 503: the store is gone, which the next poll tells
      );
      await new Promise((go) => setTimeout(go, pause));
    }
    running = false;
  };
}
