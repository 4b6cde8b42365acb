// Line charts over time.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useBox } from "./box";
import { number, short } from "./format";
import { theme } from "./theme";

export interface Line {
  name: string;
  /** The name of a color in the style sheet. */
  color: string;
  values: number[];
}

const DAY_S = 86_400;

/** A time on the axis: a date at midnight and if the step is a day or more, a time of day otherwise. */
function clock(atS: number, stepS: number): string {
  const date = new Date(atS * 1_000);
  return stepS >= DAY_S || !(date.getHours() + date.getMinutes())
    ? date.toLocaleDateString([], { day: "numeric", month: "short" })
    : date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
}

// The steps of the axis. Above two days each label is a date.
const STEPS_S = [60, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 14_400, 21_600, DAY_S, 2 * DAY_S, 7 * DAY_S, 30 * DAY_S];

/** Values without runs of zeros, so that a line on the axis does not cover the other lines. */
const withoutZeros = (values: number[]) =>
  values.map((value, i) => (value || values[i - 1] || values[i + 1] ? value : null));

export function Chart(props: { label: string; times: number[]; lines: Line[]; height?: number }) {
  const place = useRef<HTMLDivElement>(null);
  const [at, point] = useState<number | null>(null);
  const dark = useBox(theme);
  const { times, lines } = props;
  useEffect(() => {
    const host = place.current;
    if (!host || !times.length) return;
    const style = getComputedStyle(document.documentElement);
    const of = (name: string) => style.getPropertyValue(`--${name}`).trim();
    const axis = { stroke: of("dim"), grid: { stroke: of("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const height = props.height ?? 200;
    const plot = new uPlot(
      {
        width: host.clientWidth,
        height,
        cursor: { y: false, drag: { x: false, y: false } },
        legend: { show: false },
        padding: [null, 30, null, null],
        scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
        axes: [{ ...axis, size: 30, incrs: times.at(-1)! - times[0]! > 2 * DAY_S ? STEPS_S.filter((step) => step >= DAY_S) : STEPS_S, values: (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick, step)) }, { ...axis, size: 48, values: (_, ticks) => ticks.map((tick) => short(tick)) }],
        series: [
          {},
          ...lines.map((line) => ({
            label: line.name,
            stroke: of(line.color),
            fill: `${of(line.color)}18`,
            width: 2,
            points: { show: false },
          })),
        ],
        hooks: { setCursor: [(shown) => point(shown.cursor.idx ?? null)] },
      },
      [times, ...lines.map((line) => withoutZeros(line.values))] as uPlot.AlignedData,
      host,
    );
    const watch = new ResizeObserver(() => plot.setSize({ width: host.clientWidth, height }));
    watch.observe(host);
    return () => {
      watch.disconnect();
      plot.destroy();
      point(null);
    };
  }, [times, lines, dark, props.height]);
  const total = (line: Line) => number(line.values.reduce((a, b) => a + b, 0));
  const hovered = at !== null && times[at] !== undefined ? at : null;
  return (
    <figure class="chart" aria-label={`${props.label}. ${lines.map((line) => `${line.name}: ${total(line)}`).join(", ")}`} role="group">
      <div ref={place} />
      <figcaption class="legend">
        {lines.map((line) => (
          <span key={line.name}><i data-color={line.color} aria-hidden="true" />{line.name} <strong>{hovered === null ? total(line) : number(line.values[hovered] ?? 0)}</strong></span>
        ))}
        <span class="dim">{hovered === null ? "Total" : new Date(times[hovered]! * 1_000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" })}</span>
      </figcaption>
    </figure>
  );
}
