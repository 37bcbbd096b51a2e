/** uPlot, in a chunk of its own. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { texts } from "../texts/common";

export interface PlotOptions {
  height: number;
  stacked: boolean;
  labels: string[];
  colours: string[];
  format: (value: number | null) => string;
  sync: string | undefined;
  binary: boolean;
  span: () => [number | undefined, number | undefined];
  /** Which of the lines are another time's. */
  faint: boolean[];
  marks: () => { at: number; colour: string }[];
  onHover: (index: number | null) => void;
  /** A part of the time was chosen by dragging, in Unix milliseconds. */
  onSelect: ((from: number, to: number) => void) | undefined;
  /** A moment was clicked. */
  onPick: ((index: number) => void) | undefined;
}

const POWERS = Array.from({ length: 60 }, (_, power) => 2 ** power);

export function draw(element: HTMLElement, data: uPlot.AlignedData, options: PlotOptions): uPlot {
  const style = getComputedStyle(document.documentElement);
  const line = style.getPropertyValue("--grid").trim();
  const ink = style.getPropertyValue("--ink-2").trim();
  const font = `11px ${getComputedStyle(element).fontFamily}`;
  const axis = { stroke: ink, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  const filled = options.stacked || options.faint.filter((faint) => !faint).length === 1;
  const chosen = (plot: uPlot): void => {
    const { left, width } = plot.select;
    if (width > 0 && plot.cursor.event) options.onSelect?.(plot.posToVal(left, "x") * 1_000, plot.posToVal(left + width, "x") * 1_000);
    if (width > 0) plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  };
  const drawn = new uPlot(
    {
      width: element.clientWidth || 300,
      height: options.height,
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: options.onSelect !== undefined, y: false, setScale: false, dist: 4 }, ...(options.sync ? { sync: { key: options.sync } } : {}) },
      scales: {
        x: {
          time: true,
          range: (_, low, high) => {
            const [from, to] = options.span();
            return [from === undefined ? low : from / 1000, to === undefined ? high : to / 1000];
          },
        },
        y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high ?? 0) <= 0 ? 1 : high * 1.1] },
      },
      axes: [
        { ...axis, size: (_, values) => (values?.some((value) => value?.includes("\n")) ? 42 : 28), space: 70, values: [[86400, texts.units.date, null, null, null, null, null, null, 1], [3600, "{HH}:{mm}", `\n${texts.units.date}`, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
        { ...axis, size: 62, ...(options.binary ? { incrs: POWERS } : {}), values: (_, ticks) => ticks.map((tick) => options.format(tick)) },
      ],
      series: [
        {},
        ...options.labels.map((label, position) => {
          const stroke = options.colours[position] ?? ink;
          const one: uPlot.Series = { label, stroke, width: 1.5, points: { show: false }, spanGaps: false };
          if (options.faint[position]) Object.assign(one, { stroke: `${stroke}99`, dash: [4, 3] });
          else if (filled) one.fill = `${stroke}26`;
          return one;
        }),
      ],
      hooks: {
        setCursor: [(plot) => options.onHover(plot.cursor.idx ?? null)],
        setSelect: [chosen],
        draw: [(plot) => mark(plot, options.marks())],
      },
    },
    data,
    element,
  );
  drawn.over.addEventListener("click", () => {
    const index = drawn.cursor.idx;
    if (typeof index === "number") options.onPick?.(index);
  });
  return drawn;
}

/** A line through the chart for each moment, with a triangle at its top. */
function mark(plot: uPlot, marks: { at: number; colour: string }[]): void {
  const { ctx, bbox } = plot;
  const size = 4 * devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
  ctx.clip();
  for (const { at, colour } of marks) {
    // In the middle of pixels, so that the line is not blurred.
    const x = Math.round(plot.valToPos(at / 1_000, "x", true)) + (Math.round(devicePixelRatio) % 2) / 2;
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = colour;
    ctx.lineWidth = Math.round(devicePixelRatio);
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(x - size, bbox.top);
    ctx.lineTo(x + size, bbox.top);
    ctx.lineTo(x, bbox.top + 1.5 * size);
    ctx.fill();
  }
  ctx.restore();
}

/** Move the cursor to a time, in unix seconds, in this plot and in those beside it. */
export function point(plot: uPlot, at: number, sync: string | undefined): void {
  const plots = sync === undefined ? [plot] : uPlot.sync(sync).plots;
  for (const one of plots) one.setCursor({ left: one.valToPos(at, "x"), top: 1 }, true);
}
