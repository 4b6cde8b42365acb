// Lines over time.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useBox } from "./box";
import { number, short } from "./format";
import { theme } from "./theme";

export interface Line {
  name: string;
  /** The name of a colour in the style sheet. */
  color: string;
  values: (number | null)[];
}

const DAY_S = 86_400;

/** A time on the axis as the reader writes it: the day where that is what differs. */
function clock(atS: number, stepS: number): string {
  const date = new Date(atS * 1_000);
  return stepS >= DAY_S
    ? date.toLocaleDateString([], { day: "numeric", month: "short" })
    : date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
}

export function Chart(props: { label: string; times: number[]; lines: Line[]; height?: number }) {
  const place = useRef<HTMLDivElement>(null);
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
        scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
        axes: [{ ...axis, values: (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick, step)) }, { ...axis, size: 48, values: (_, ticks) => ticks.map((tick) => short(tick)) }],
        series: [
          { value: (_, at) => (at ? new Date(at * 1_000).toLocaleString() : "") },
          ...lines.map((line) => ({
            label: line.name,
            stroke: of(line.color),
            fill: `${of(line.color)}18`,
            width: 2,
            points: { show: false },
            value: (_: uPlot, value: number | null) => (value === null ? "–" : number(value)),
          })),
        ],
      },
      [times, ...lines.map((line) => line.values)] as uPlot.AlignedData,
      host,
    );
    const watch = new ResizeObserver(() => plot.setSize({ width: host.clientWidth, height }));
    watch.observe(host);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [times, lines, dark, props.height]);
  const sums = lines.map((line) => `${line.name}: ${number(line.values.reduce<number>((a, b) => a + (b ?? 0), 0))}`);
  return <figure class="chart" aria-label={`${props.label}. ${sums.join(", ")}`} role="group"><div ref={place} /></figure>;
}
