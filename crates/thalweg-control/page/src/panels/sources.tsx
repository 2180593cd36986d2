// Table of the sources, and of the builders below it.

import { useState } from "preact/hooks";
import type { Source, StateName, Status } from "../api.ts";
import type { History } from "../history.ts";
import { Cell, Icon, Panel, SeverityMark } from "../parts.tsx";
import { numberOf } from "../read.ts";
import {
  formatByteRate,
  formatBytes,
  formatCount,
  formatPercent,
  formatRate,
  formatSeconds,
  formatText,
} from "../text.ts";
import { BUCKETS, byTrouble, lossOf, severityOf } from "../trouble.ts";

/** A source that is busy for longer than this is marked: it misses triggers. */
const MARKED_DEAD_PERCENT = 10;
/** A source that owes data for longer than this is marked, as the service does. */
const MARKED_OWES_SECONDS = 0.5;
const SPARK_POINTS = 60;
const SPARK_WIDTH = 60;
const SPARK_HEIGHT = 20;

/** Rate of the last minute. */
function Sparkline({ values }: { values: (number | null)[] }) {
  const shown = values.slice(-SPARK_POINTS);
  const greatest = Math.max(1e-9, ...shown.map(numberOf));
  const offset = SPARK_POINTS - shown.length;
  let path = "";
  let isDrawing = false;
  shown.forEach((value, index) => {
    if (value === null) {
      isDrawing = false;
      return;
    }
    const x = ((index + offset) / (SPARK_POINTS - 1)) * SPARK_WIDTH;
    const y = SPARK_HEIGHT - 1 - (value / greatest) * (SPARK_HEIGHT - 2);
    path += `${isDrawing ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isDrawing = true;
  });
  return (
    <svg class="spark" viewBox={`0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`} aria-hidden="true">
      <path d={path} />
    </svg>
  );
}

function Marked({ when, children }: { when: boolean; children: string }) {
  if (!when) return <>{children}</>;
  return (
    <span class="mark minor">
      <Icon name="minor" /> {children}
    </span>
  );
}

/** Words on the connection of a source, if there is something to say. */
function connectionOf(source: Source, state: StateName): string {
  if (source.is_node_connected === false) return "node not connected";
  if (source.is_given_up) return "given up";
  if (source.has_ended) return "ended";
  const isLinkDue = !["idle", "configuring", "error"].includes(state);
  return source.is_linked === false && isLinkDue ? "not linked" : "";
}

function Loss({ source }: { source: Source }) {
  const lossy = BUCKETS.filter((bucket) => bucket.isLoss && numberOf(source[bucket.field as keyof Source]) > 0);
  const parts = lossy.map((bucket) => `${bucket.label} ${formatCount(source[bucket.field as keyof Source])}`);
  if (numberOf(source.absent_events) > 0) parts.push(`absent ${formatCount(source.absent_events)}`);
  if (parts.length === 0) return <>{formatCount(lossOf(source))}</>;
  return (
    <span class="mark minor loss">
      <Icon name="minor" /> {parts.join(", ")}
    </span>
  );
}

type Key = "trouble" | "name" | "rate" | "backlog" | "credit" | "owes" | "dead" | "loss";

const COLUMNS: readonly { key: Key; label: string; title: string; value: (source: Source) => number | string }[] = [
  { key: "trouble", label: "State", title: "Those in trouble first", value: (source) => severityOf(source.severity) },
  { key: "name", label: "Source", title: "Name, host, address, link", value: (source) => source.name },
  {
    key: "rate",
    label: "Rate",
    title: "Bytes and events in a second",
    value: (source) => -numberOf(source.bytes_per_second),
  },
  {
    key: "backlog",
    label: "Backlog",
    title: "Open offers: data that the source holds for the builder",
    value: (source) => -numberOf(source.backlog),
  },
  {
    key: "credit",
    label: "Credit",
    title: "Bytes requested and not yet received",
    value: (source) => -numberOf(source.credit_bytes),
  },
  {
    key: "owes",
    label: "Owes",
    title: "Time for which it has owed requested data",
    value: (source) => -numberOf(source.owes_seconds),
  },
  {
    key: "dead",
    label: "Dead time",
    title: "Share of the time in which it took nothing from its device",
    value: (source) => -numberOf(source.dead_percent),
  },
  { key: "loss", label: "Loss", title: "Fragments that will not be recorded", value: (source) => -lossOf(source) },
];

function sorted(sources: Source[], key: Key): Source[] {
  if (key === "trouble") return [...sources].sort(byTrouble);
  const column = COLUMNS.find((column) => column.key === key);
  if (!column) return sources;
  return [...sources].sort((first, second) => {
    const [a, b] = [column.value(first), column.value(second)];
    return a < b ? -1 : a > b ? 1 : 0;
  });
}

function SourceRow({ source, status, history }: { source: Source; status: Status; history: History }) {
  const severity = severityOf(source.severity);
  const connection = connectionOf(source, status.state);
  const isSilent =
    status.state === "running" && source.bytes_per_second === 0 && numberOf(status.totals.bytes_per_second) > 0;
  return (
    <tr role="row" class={severity} data-source={source.name}>
      <Cell label="State">
        <SeverityMark severity={severity} />
      </Cell>
      <th role="rowheader" scope="row">
        <span class="name">{source.name || "?"}</span>{" "}
        {connection && (
          <span class={`mark ${severity === "ok" ? "quiet" : "minor"}`}>
            <Icon name="away" /> {connection}
          </span>
        )}
        <span class="where">
          {formatText(source.host)} · {formatText(source.address)} · {formatText(source.link)}
        </span>
      </th>
      <Cell label="Rate" class="rate">
        <span class="figures">
          <Marked when={isSilent}>{formatByteRate(source.bytes_per_second)}</Marked>
          <span class="where">{formatRate(source.events_per_second)}</span>
        </span>
        <Sparkline values={history.sources.get(source.name)?.bytes_per_second ?? []} />
      </Cell>
      <Cell label="Backlog">{formatCount(source.backlog)}</Cell>
      <Cell label="Credit">{formatBytes(source.credit_bytes)}</Cell>
      <Cell label="Owes">
        <Marked when={source.owes_seconds > MARKED_OWES_SECONDS}>{formatSeconds(source.owes_seconds)}</Marked>
      </Cell>
      <Cell label="Dead time">
        <Marked when={numberOf(source.dead_percent) > MARKED_DEAD_PERCENT}>{formatPercent(source.dead_percent)}</Marked>
      </Cell>
      <Cell label="Loss">
        <Loss source={source} />
      </Cell>
    </tr>
  );
}

function Builders({ status }: { status: Status }) {
  if (status.builders.length === 0) return null;
  return (
    <table role="table" class="cards builders">
      <caption>Builders</caption>
      <thead role="rowgroup">
        <tr role="row">
          {["Builder", "State", "Rate", "Events", "Incomplete", "Back-pressure"].map((label) => (
            <th role="columnheader" scope="col" key={label}>
              {label}
            </th>
          ))}
        </tr>
      </thead>
      <tbody role="rowgroup">
        {status.builders.map((builder, index) => (
          <tr role="row" key={`${builder.name} ${index}`}>
            <th role="rowheader" scope="row">
              <span class="name">{builder.name || "?"}</span> <span class="where">{formatText(builder.host)}</span>
              {builder.is_node_connected === false && (
                <span class="mark major">
                  <Icon name="away" /> node not connected
                </span>
              )}
            </th>
            <Cell label="State">{formatText(builder.state)}</Cell>
            <Cell label="Rate">{formatByteRate(builder.bytes_per_second)}</Cell>
            <Cell label="Events">{formatCount(builder.events)}</Cell>
            <Cell label="Incomplete">
              <Marked when={builder.incomplete > 0}>{formatCount(builder.incomplete)}</Marked>
            </Cell>
            <Cell label="Back-pressure">{formatPercent(builder.stalled_percent)}</Cell>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

export function Sources({ status, history }: { status: Status; history: History }) {
  const [key, setKey] = useState<Key>("trouble");
  const inTrouble = status.sources.filter((source) => severityOf(source.severity) !== "ok").length;
  return (
    <Panel
      id="sources"
      title="Sources"
      aside={
        <span class="quiet">
          {formatCount(status.sources.length)}, {inTrouble === 0 ? "none" : formatCount(inTrouble)} in trouble
        </span>
      }
    >
      <table role="table" class="cards sources">
        <thead role="rowgroup">
          <tr role="row">
            {COLUMNS.map((column) => (
              <th
                role="columnheader"
                scope="col"
                key={column.key}
                aria-sort={column.key === key ? (column.key === "name" ? "ascending" : "descending") : undefined}
              >
                <button type="button" class="sort" title={column.title} onClick={() => setKey(column.key)}>
                  {column.label}
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {sorted(status.sources, key).map((source, index) => (
            <SourceRow key={source.name || index} source={source} status={status} history={history} />
          ))}
        </tbody>
      </table>
      {status.sources.length === 0 && <p class="quiet">No source is known yet.</p>}
      <Builders status={status} />
    </Panel>
  );
}
