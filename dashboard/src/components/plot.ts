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
  onHover: (index: number | null) => void;
}

const POWERS = Array.from({ length: 60 }, (_, power) => 2 ** power);

export function draw(element: HTMLElement, data: uPlot.AlignedData, options: PlotOptions): uPlot {
  const style = getComputedStyle(document.documentElement);
  const line = style.getPropertyValue("--grid").trim();
  const ink = style.getPropertyValue("--ink-2").trim();
  const font = `11px ${getComputedStyle(element).fontFamily}`;
  const axis = { stroke: ink, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  const filled = options.stacked || options.labels.length === 1;
  return new uPlot(
    {
      width: element.clientWidth || 300,
      height: options.height,
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false }, ...(options.sync ? { sync: { key: options.sync } } : {}) },
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
        { ...axis, size: 28, space: 70, values: [[3600, "{HH}:{mm}", `\n${texts.units.date}`, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
        { ...axis, size: 62, ...(options.binary ? { incrs: POWERS } : {}), values: (_, ticks) => ticks.map((tick) => options.format(tick)) },
      ],
      series: [
        {},
        ...options.labels.map((label, position) => {
          const stroke = options.colours[position] ?? ink;
          const one: uPlot.Series = { label, stroke, width: 1.5, points: { show: false }, spanGaps: false };
          if (filled) one.fill = `${stroke}26`;
          return one;
        }),
      ],
      hooks: { setCursor: [(plot) => options.onHover(plot.cursor.idx ?? null)] },
    },
    data,
    element,
  );
}

/** Move the cursor to a time, in unix seconds, in this plot and in those beside it. */
export function point(plot: uPlot, at: number, sync: string | undefined): void {
  const plots = sync === undefined ? [plot] : uPlot.sync(sync).plots;
  for (const one of plots) one.setCursor({ left: one.valToPos(at, "x"), top: 1 }, true);
}
