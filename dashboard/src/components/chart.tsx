import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { returned } from "../api";
import { exact } from "../format";
import { atOf } from "../range";
import { texts } from "../texts/common";
import { isDark } from "../theme";
import { inTurn } from "../turns";

// A function of its own: Vite takes what follows an import() into what it loads, and leaves a style sheet that is missing outside.
const readPlot = () => import("./plot");

export interface Series {
  label: string;
  /** One value for each time; null: nothing is known of it. */
  values: (number | null)[];
  /** One of the colours `--line-1` to `--line-8`; else in their order. */
  color?: number;
  /** Of another time, to compare with: a broken line. */
  faint?: boolean;
}

/** Something that happened at a moment. */
export interface Mark {
  /** Unix milliseconds. */
  at: number;
  /** A custom property of `styles.css`, such as `--bad`. */
  colour: string;
}

export interface ChartProps {
  title: string;
  /** The list behind it. */
  href?: string | undefined;
  /** Unix milliseconds, ascending. */
  at: number[];
  series: Series[];
  format: (value: number | null | undefined) => string;
  /** The span that is shown, unix milliseconds; else what there is. */
  from?: number;
  to?: number;
  height?: number;
  /** On top of each other. */
  stacked?: boolean;
  /** The steps of its axis are powers of two: bytes. */
  binary?: boolean;
  /** Charts of one name, over the same times, show the same moment. */
  sync?: string;
  marks?: Mark[];
  /** The place in `at` that is pointed at. */
  onHover?: (index: number | null) => void;
  /** A part of the time that was chosen by dragging, in Unix milliseconds. */
  onSelect?: (from: number, to: number) => void;
  /** The moment that was clicked, or chosen by Enter. */
  onPick?: (at: number) => void;
}

const NO_MARKS: Mark[] = [];

function colour(index: number): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--line-${(index % 8) + 1}`).trim();
}

function latest(values: (number | null)[]): number | null {
  for (let at = values.length - 1; at >= 0; at -= 1) {
    const value = values[at];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

function bounds(values: (number | null)[]): [number | null, number | null] {
  let low: number | null = null;
  let high: number | null = null;
  for (const value of values) {
    if (value === null) continue;
    if (low === null || value < low) low = value;
    if (high === null || value > high) high = value;
  }
  return [low, high];
}

/** Each series on top of those before it. */
function stack(series: Series[]): (number | null)[][] {
  const sums: number[] = [];
  return series.map(({ values }) =>
    values.map((value, index) => {
      if (value === null) return null;
      sums[index] = (sums[index] ?? 0) + value;
      return sums[index] ?? null;
    }),
  );
}

/**
 * Figures over time. Hovering, or the arrow keys where it has the focus, show the values of one moment. What is drawn is
 * said in a sentence too.
 */
export function Chart(props: ChartProps) {
  const { title, href, at, series, format, from, to, height = 180, stacked, sync, binary, marks = NO_MARKS } = props;
  const box = useRef<HTMLDivElement>(null);
  /** What is drawn, and the lines that it was drawn for: data of others does not fit. */
  const plot = useRef<{ drawn: uPlot; shape: string } | undefined>(undefined);
  const point = useRef<((at: number) => void) | undefined>(undefined);
  const [index, setIndex] = useState<number | null>(null);
  const [ready, setReady] = useState(false);
  const hovered = useRef<(index: number | null) => void>(() => undefined);
  hovered.current = (next) => {
    setIndex(next);
    props.onHover?.(next);
  };
  const handlers = useRef(props);
  handlers.current = props;
  const dark = isDark();
  const formatter = useRef(format);
  formatter.current = format;
  const span = useRef<[number | undefined, number | undefined]>([from, to]);
  span.current = [from, to];

  const data = useMemo((): uPlot.AlignedData => {
    const lines = stacked ? stack(series) : series.map(({ values }) => values);
    return [at.map((moment) => moment / 1000), ...lines];
  }, [at, series, stacked]);
  const shape = series.map((one) => `${one.label}:${one.color ?? ""}:${one.faint ?? ""}`).join("|");
  const current = useRef({ shape, data });
  current.current = { shape, data };
  const selects = props.onSelect !== undefined;

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    let gone = false;
    let watch: ResizeObserver | undefined;
    const start = ({ draw, point: move }: typeof import("./plot")): void => {
      // With other lines in the meantime, it is drawn by the effect that follows.
      if (gone || current.current.shape !== shape) return;
      const drawn = draw(element, current.current.data, {
        height,
        stacked: stacked ?? false,
        labels: series.map((one) => one.label),
        colours: series.map((one, position) => colour(one.color ?? position)),
        format: (value) => formatter.current(value),
        span: () => span.current,
        sync,
        binary: binary ?? false,
        faint: series.map((one) => one.faint ?? false),
        marks: () => {
          const style = getComputedStyle(document.documentElement);
          return (handlers.current.marks ?? NO_MARKS).map((one) => ({ at: one.at, colour: style.getPropertyValue(one.colour).trim() }));
        },
        onHover: (next) => hovered.current(next),
        onSelect: selects ? (low, high) => handlers.current.onSelect?.(low, high) : undefined,
        onPick: (next) => pick(next),
      });
      plot.current = { drawn, shape };
      point.current = (moment) => move(drawn, moment / 1000, sync);
      watch = new ResizeObserver(() => drawn.setSize({ width: element.clientWidth, height }));
      watch.observe(element);
      setReady(true);
    };
    // Where the node is away, it is drawn when that is back.
    readPlot().then((program) => inTurn(() => start(program)), () => undefined);
    return () => {
      gone = true;
      watch?.disconnect();
      plot.current?.drawn.destroy();
      plot.current = undefined;
      point.current = undefined;
    };
  }, [shape, height, dark, stacked, selects, returned.value]);

  const pick = (index: number): void => {
    const moment = handlers.current.at[index];
    if (moment !== undefined) handlers.current.onPick?.(moment);
  };
  const update = useRef(() => {
    if (plot.current?.shape === current.current.shape) plot.current.drawn.setData(current.current.data);
  });
  useEffect(() => inTurn(update.current), [data, from, to, ready, marks]);

  const shown = index !== null && index < at.length ? index : null;
  const step = (event: KeyboardEvent): void => {
    const moves: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, PageUp: -60, PageDown: 60 };
    if (event.key === "Enter" && event.target === event.currentTarget && shown !== null) pick(shown);
    const move = moves[event.key];
    if (move === undefined || at.length === 0) return;
    event.preventDefault();
    const next = Math.min(at.length - 1, Math.max(0, (index ?? at.length - 1) + move));
    point.current?.(at[next] ?? 0);
  };
  const moment = shown === null ? undefined : at[shown];
  return (
    <figure class="chart" tabIndex={0} aria-label={title} onKeyDown={step} onBlur={() => hovered.current(null)}>
      <figcaption>
        <strong>{href === undefined ? title : <a href={href}>{title}</a>}</strong>
        <span class="chart-time" title={moment === undefined ? "" : exact(moment)}>
          {moment === undefined ? "" : atOf((at.at(-1) ?? 0) - (at[0] ?? 0))(moment)}
        </span>
      </figcaption>
      <div ref={box} class="plot" style={{ height: `${height}px` }} aria-hidden="true" />
      {at.length === 0 && <p class="plot-none faint">{ready ? texts.chart.none : ""}</p>}
      <ul class="legend" aria-live={shown === null ? "off" : "polite"}>
        {series.map((one, position) => {
          const value = shown === null ? latest(one.values) : (one.values[shown] ?? null);
          const [low, high] = bounds(one.values);
          return (
            <li key={one.label} title={texts.chart.summary(one.label, format(latest(one.values)), format(low), format(high))}>
              <span class={`swatch line-${((one.color ?? position) % 8) + 1}${one.faint ? " faint-line" : ""}`} aria-hidden="true" />
              {one.label} <b>{value === null && shown !== null ? texts.chart.gap : format(value)}</b>
            </li>
          );
        })}
      </ul>
      <p class="sr">
        {series.map((one) => {
          const [low, high] = bounds(one.values);
          return `${texts.chart.summary(one.label, format(latest(one.values)), format(low), format(high))} `;
        })}
      </p>
    </figure>
  );
}
