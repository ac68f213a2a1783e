// Curves and points, by uPlot: sized by their box, coloured by the theme, and named for those who do not see them.

import { number } from "./api.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const all = new Set();

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
dark.addEventListener("change", () => all.forEach((chart) => chart.redraw()));

function tick(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  return number(value).replace(/,/g, "");
}

function axis(more) {
  return {
    stroke: () => colour("soft"),
    grid: { stroke: () => colour("line"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
    values: (_, splits) => splits.map((value) => (value === null ? "" : tick(value))),
    ...more,
  };
}

// A chart in a box. `series` are { name, colour, kind: "line" | "points" | "steps", width };
// data are [x, y, y, ...], of numbers or null.
export class Chart {
  constructor(box, { series, label, select = null, click = null, yMin = null, xName = "" }) {
    Object.assign(this, { box, series, label, select, click, yMin, xName });
    this.plot = null;
    this.data = null;
    this.shape = "";
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
    const { clientWidth: width } = this.box;
    if (!width || !this.data) return;
    if (!this.plot) this.draw();
    else if (width !== this.plot.width) this.plot.setSize({ width, height: this.height() });
  }

  height() {
    return Math.max(60, this.box.clientHeight);
  }

  redraw() {
    this.plot?.destroy();
    this.plot = null;
    this.fit();
  }

  set(data, words = "") {
    this.data = data;
    const n = data[0].length;
    this.box.setAttribute("aria-label", `${this.label}: ${words || (n ? `${n} points` : "nothing yet")}`);
    this.box.querySelector(".nothing")?.remove();
    if (!n) {
      this.plot?.destroy();
      this.plot = null;
      const nothing = document.createElement("p");
      nothing.className = "nothing";
      nothing.textContent = words || "nothing yet";
      this.box.append(nothing);
      this.data = null;
      return;
    }
    if (this.plot) this.plot.setData(data);
    else this.fit();
  }

  draw() {
    const chart = this;
    const paths = { steps: () => uPlot.paths.stepped({ align: 1 }) };
    const options = {
      width: this.box.clientWidth,
      height: this.height(),
      legend: { show: false },
      padding: [8, 12, 0, 0],
      cursor: { drag: { x: Boolean(this.select), y: false, setScale: false }, y: false, points: { show: false } },
      select: { show: Boolean(this.select) },
      scales: {
        x: {
          time: false,
          range: (_, low, high) => {
            const room = low === high ? 1 : this.series.some(({ kind }) => kind === "points") ? (high - low) / 80 : 0;
            return [low - room, high + room];
          },
        },
        y: {
          range: (_, low, high) => {
            if (low === null) return [0, 1];
            const bottom = this.yMin === null ? low : Math.min(low, this.yMin);
            const room = high - bottom || Math.abs(high) || 1;
            return [bottom === this.yMin && low >= this.yMin ? bottom : bottom - 0.06 * room, high + 0.08 * room];
          },
        },
      },
      axes: [axis({ size: 26, gap: 4 }), axis({ size: 46, gap: 4 })],
      series: [
        { label: this.xName },
        ...this.series.map((one) => ({
          label: one.name,
          stroke: () => colour(one.colour),
          width: one.kind === "points" ? 0 : (one.width ?? 1.5),
          paths: one.kind === "points" ? () => null : paths[one.kind]?.(),
          points: one.kind === "points" ? { show: true, size: one.size ?? 4, width: 0, fill: () => colour(one.colour) } : { show: false },
        })),
      ],
      hooks: {
        setSelect: [
          (plot) => {
            if (!chart.select || plot.select.width < 3) return;
            const from = plot.posToVal(plot.select.left, "x");
            chart.select(from, plot.posToVal(plot.select.left + plot.select.width, "x"));
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          },
        ],
        draw: [(plot) => chart.mark !== undefined && chart.mark !== null && drawMark(plot, chart.mark)],
      },
    };
    this.plot = new uPlot(options, this.data, this.box);
    if (this.click) listen(this.plot, this.click);
  }

  // A vertical line at x: where the player is.
  setMark(x) {
    if (x === this.mark) return;
    this.mark = x;
    this.plot?.redraw(false, false);
  }
}

function drawMark(plot, x) {
  const at = Math.round(plot.valToPos(x, "x", true));
  const { ctx, bbox } = plot;
  if (at < bbox.left - 1 || at > bbox.left + bbox.width + 1) return;
  ctx.save();
  ctx.strokeStyle = colour("mean");
  ctx.lineWidth = Math.max(1, devicePixelRatio);
  ctx.beginPath();
  ctx.moveTo(at, bbox.top);
  ctx.lineTo(at, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}

// A click, or a tap; not the end of a drag.
function listen(plot, click) {
  let down = null;
  plot.over.addEventListener("pointerdown", (event) => (down = [event.clientX, event.clientY]));
  plot.over.addEventListener("pointerup", (event) => {
    if (down === null || Math.hypot(event.clientX - down[0], event.clientY - down[1]) > 4) return;
    const box = plot.over.getBoundingClientRect();
    const left = event.clientX - box.left;
    click(plot.posToVal(left, "x"), plot.posToVal(event.clientY - box.top, "y"), plot);
  });
  plot.over.style.cursor = "pointer";
}
