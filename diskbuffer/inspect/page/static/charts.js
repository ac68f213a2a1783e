// Curves and points, by uPlot: sized by their box, coloured by the theme, and named for those who do not see them.

import { element, number, plural } from "./api.js";

const all = new Set();
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => all.forEach((chart) => chart.redraw()));

const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
const axis = (size) => ({
  size,
  gap: 4,
  stroke: () => colour("soft"),
  grid: { stroke: () => colour("line"), width: 1 },
  ticks: { show: false },
  font: "11px system-ui, sans-serif",
  values: (_, splits) => splits.map((value) => (value === null ? "" : Math.abs(value) >= 1e4 ? short.format(value) : number(value))),
});

function drawn({ name, colour: stroke, kind, width }) {
  const points = kind === "points";
  return {
    label: name,
    stroke: () => colour(stroke),
    width: points ? 0 : (width ?? 1.5),
    paths: points ? () => null : kind === "steps" ? uPlot.paths.stepped({ align: 1 }) : undefined,
    points: { show: points, size: 5, width: 0, fill: () => colour(stroke) },
  };
}

// A chart in a box. `series` are { name, colour, kind: "line" | "points" | "steps", width };
// data are [x, y, y, ...], of numbers or null. `click` gets (x, y, plot), `select` the ends of a stretch that is dragged over.
export class Chart {
  constructor(box, { series, label, select = null, click = null, yMin = Infinity }) {
    Object.assign(this, { box, series, label, select, click, yMin, plot: null, data: null, mark: null });
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(box);
    all.add(this);
  }

  close() {
    this.observer.disconnect();
    this.plot?.destroy();
    all.delete(this);
  }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!width || !this.data) return;
    if (!this.plot) this.draw(width, height);
    else if (width !== this.plot.width) this.plot.setSize({ width, height });
  }

  redraw() {
    this.plot?.destroy();
    this.plot = null;
    this.fit();
  }

  set(data, words = "") {
    const n = data[0].length;
    this.data = n ? data : null;
    this.box.setAttribute("aria-label", `${this.label}: ${words || (n ? plural(n, "point") : "nothing yet")}`);
    this.box.querySelector(".nothing")?.remove();
    if (!n) {
      this.redraw();
      this.box.append(element("p.nothing", {}, words || "nothing yet"));
    } else if (this.plot) this.plot.setData(data);
    else this.fit();
  }

  draw(width, height) {
    const points = this.series.some(({ kind }) => kind === "points");
    const around = (low, high) => {
      const room = low === high ? 1 : points ? (high - low) / 80 : 0;
      return [low - room, high + room];
    };
    const beside = (low, high) => {
      if (low === null) return [0, 1];
      const bottom = Math.min(low, this.yMin);
      const room = high - bottom || Math.abs(high) || 1;
      return [bottom === this.yMin ? bottom : bottom - 0.06 * room, high + 0.08 * room];
    };
    const selected = (plot) => {
      const { left, width } = plot.select;
      if (!this.select || width < 5) return;
      this.select(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    };
    const options = {
      width,
      height,
      legend: { show: false },
      padding: [8, 12, 0, 0],
      cursor: { drag: { x: Boolean(this.select), y: false, setScale: false }, y: false, points: { show: false } },
      select: { show: Boolean(this.select) },
      scales: { x: { time: false, range: (_, low, high) => around(low, high) }, y: { range: (_, low, high) => beside(low, high) } },
      axes: [axis(26), axis(46)],
      series: [{}, ...this.series.map(drawn)],
      hooks: { setSelect: [selected], draw: [(plot) => this.mark !== null && drawMark(plot, this.mark)] },
    };
    this.plot = new uPlot(options, this.data, this.box);
    if (this.click) listen(this.plot, this.click);
  }

  // A vertical line at x: where the player is.
  setMark(x) {
    this.mark = x;
    this.plot?.redraw(false, false);
  }
}

function drawMark({ ctx, bbox, valToPos }, x) {
  ctx.save();
  ctx.fillStyle = colour("mean");
  ctx.fillRect(Math.round(valToPos(x, "x", true)), bbox.top, Math.max(1, devicePixelRatio), bbox.height);
  ctx.restore();
}

// A click, or a tap; not the end of a drag.
function listen(plot, click) {
  let down = null;
  plot.over.addEventListener("pointerdown", (event) => (down = [event.clientX, event.clientY]));
  plot.over.addEventListener("pointerup", (event) => {
    if (down === null || Math.hypot(event.clientX - down[0], event.clientY - down[1]) > 4) return;
    const box = plot.over.getBoundingClientRect();
    click(plot.posToVal(event.clientX - box.left, "x"), plot.posToVal(event.clientY - box.top, "y"), plot);
  });
  plot.over.style.cursor = "pointer";
}
