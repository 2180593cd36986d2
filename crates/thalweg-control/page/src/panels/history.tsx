// Rates of the last hour, of all sources or of one.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import type { History } from "../history.ts";
import { colorOf } from "../draw.ts";
import { Panel } from "../parts.tsx";
import { formatBytes, formatShort } from "../text.ts";

type Column = (number | null)[];

interface Curve {
  label: string;
  format: (value: unknown) => string;
  values: Column;
}

const CHART_HEIGHT = 130;
/** Least distance of two ticks of the time axis, in pixels: their labels may have seconds. */
const TICK_SPACE = 75;
const NO_VALUES: Column = [];

function curvesOf(history: History, source: string | null): Curve[] {
  const columns = source === null ? null : history.sources.get(source);
  if (source !== null) {
    return [
      { label: "bytes a second", format: formatBytes, values: columns?.bytes_per_second ?? NO_VALUES },
      { label: "backlog", format: formatShort, values: columns?.backlog ?? NO_VALUES },
      { label: "lost fragments", format: formatShort, values: columns?.lost ?? NO_VALUES },
    ];
  }
  return [
    { label: "events a second", format: formatShort, values: history.events_per_second },
    { label: "bytes a second", format: formatBytes, values: history.bytes_per_second },
    { label: "incomplete events", format: formatShort, values: history.incomplete },
  ];
}

function optionsOf(curve: Curve, width: number, ink: string, grid: string, line: string): uPlot.Options {
  const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
  return {
    width,
    height: CHART_HEIGHT,
    legend: { show: false },
    cursor: { sync: { key: "history" }, drag: { x: true, y: false } },
    scales: { y: { range: (_, __, greatest) => [0, greatest > 0 ? greatest * 1.05 : 1] } },
    axes: [
      { ...axis, space: TICK_SPACE, values: (_, times) => times.map((time) => formatTick(time, times)) },
      { ...axis, size: 64, values: (_, values) => values.map((value) => curve.format(value)) },
    ],
    series: [{}, { label: curve.label, stroke: line, width: 1.5, spanGaps: false, points: { show: false } }],
  };
}

/** Time of day at a tick of the axis: with seconds where ticks are less than a minute apart. */
function formatTick(time: number, times: number[]): string {
  const isFine = times.length > 1 && (times[1] ?? 0) - (times[0] ?? 0) < 60;
  return new Date(time * 1000).toTimeString().slice(0, isFine ? 8 : 5);
}

/** One curve. It is made anew when the colors change, and gets new data otherwise. */
function Chart({ at, curve, theme, version }: { at: number[]; curve: Curve; theme: number; version: number }) {
  const holder = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    const element = holder.current;
    if (!element) return undefined;
    const [ink, grid, line] = [colorOf(element, "ink"), colorOf(element, "grid"), colorOf(element, "line")];
    const made = new uPlot(optionsOf(curve, element.clientWidth || 300, ink, grid, line), [[], []], element);
    plot.current = made;
    const observer = new ResizeObserver(() => {
      const width = element.clientWidth;
      if (width > 0 && width !== made.width) made.setSize({ width, height: CHART_HEIGHT });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [theme, curve.label]);
  useEffect(() => {
    plot.current?.setData([at, curve.values]);
  }, [version, theme, curve.label]);
  const latest = curve.values.at(-1);
  return (
    <figure class="chart">
      <figcaption>
        {curve.label}: <strong>{curve.format(latest)}</strong>
      </figcaption>
      <div ref={holder} role="img" aria-label={`${curve.label} in the last hour`} />
    </figure>
  );
}

export function HistoryPanel({ history, theme }: { history: History; theme: number }) {
  const [source, setSource] = useState<string>("");
  const names = [...history.sources.keys()];
  const chosen = source !== "" && names.includes(source) ? source : null;
  return (
    <Panel
      id="history"
      title="Last hour"
      aside={
        <label class="select">
          of{" "}
          <select value={chosen ?? ""} onChange={(event) => setSource(event.currentTarget.value)}>
            <option value="">the whole run</option>
            {names.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
      }
    >
      <div class="charts">
        {curvesOf(history, chosen).map((curve) => (
          <Chart
            key={`${chosen} ${curve.label}`}
            at={history.at}
            curve={curve}
            theme={theme}
            version={history.version}
          />
        ))}
      </div>
    </Panel>
  );
}
