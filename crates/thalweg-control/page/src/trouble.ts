// Troubles, in the order in which an operator should look at them.

import type { Alarm, Clock, Severity, Source, Status } from "./api.ts";
import { numberOf } from "./read.ts";
import { formatSeconds, formatText } from "./text.ts";

export interface Trouble {
  severity: "minor" | "major";
  /** The thing that is wrong: the name of a source, a builder, a node. */
  subject: string;
  /** Its host and address. */
  where: string;
  text: string;
  /** Alarm about the same thing, if there is one. */
  alarm: Alarm | null;
}

const SEVERITY_RANK: Record<Severity, number> = { major: 0, minor: 1, ok: 2 };

export function severityOf(value: unknown): Severity {
  return value === "major" || value === "minor" ? value : "ok";
}

/** Order in which sources are shown: those in trouble first, otherwise as in the topology. */
export function byTrouble(first: Source, second: Source): number {
  return SEVERITY_RANK[severityOf(first.severity)] - SEVERITY_RANK[severityOf(second.severity)];
}

/** Host and address, as far as they are known. */
export function placeOf(thing: { host?: unknown; address?: unknown }): string {
  const parts = [];
  if (typeof thing.host === "string" && thing.host !== "") parts.push(`host ${thing.host}`);
  if (typeof thing.address === "string" && thing.address !== "") parts.push(thing.address);
  return parts.join(", ");
}

type Found = Omit<Trouble, "alarm">;

function sourceTroubles(status: Status): Found[] {
  return status.sources
    .filter((source) => severityOf(source.severity) !== "ok")
    .map((source) => ({
      severity: severityOf(source.severity) as "minor" | "major",
      subject: source.name,
      where: placeOf(source),
      text: source.trouble || "in trouble, for a reason that the service does not give",
    }));
}

function builderTroubles(status: Status): Found[] {
  return status.builders
    .filter((builder) => builder.is_node_connected === false)
    .map((builder) => ({
      severity: "major" as const,
      subject: builder.name,
      where: placeOf(builder),
      text: "this builder has no connection to the service",
    }));
}

function processTroubles(status: Status, known: Set<string>): Found[] {
  return status.processes
    .filter((process) => process.state === "failed" && !known.has(process.node))
    .map((process) => ({
      severity: "major" as const,
      subject: process.node,
      where: placeOf(process),
      text: `its process failed: ${process.last_line || "it left no last line"}`,
    }));
}

/** Reasons of the state, and of the last refusal, that no alarm gives already. */
function reasonTroubles(status: Status): Found[] {
  const alarmed = new Set(status.alarms.filter((alarm) => alarm.is_active).map((alarm) => alarm.text));
  return status.reasons
    .filter((reason) => !alarmed.has(reason))
    .map((reason) => ({ severity: "major" as const, subject: "run control", where: "", text: reason }));
}

/** Clocks that are not synchronized: nodes of one host share its clock, and a row. */
function clockTroubles(status: Status): Found[] {
  const hosts = new Map<string, Clock[]>();
  for (const clock of status.clocks.filter((clock) => clock.is_synchronized === false)) {
    const host = formatText(clock.host);
    hosts.set(host, [...(hosts.get(host) ?? []), clock]);
  }
  return [...hosts].map(([host, clocks]) => {
    const offset = Math.max(...clocks.map((clock) => Math.abs(numberOf(clock.offset_seconds))));
    const nodes = clocks.map((clock) => formatText(clock.node)).join(", ");
    return {
      severity: "minor" as const,
      subject: clockSubject(host),
      where: `(${nodes})`,
      text: offset > 0 ? `not synchronized, up to ${formatSeconds(offset)} off` : "not synchronized",
    };
  });
}

function clockSubject(host: string): string {
  return `clock of ${host}`;
}

/** Ids of alarms end with the name of what they are about: `source-silent:adc-1`. */
function subjectOf(alarm: Alarm): string {
  const colon = alarm.id.indexOf(":");
  if (colon < 0) return "";
  const name = alarm.id.slice(colon + 1);
  return alarm.id.startsWith("unsynchronized-clock:") ? clockSubject(name) : name;
}

/** All troubles, worst first. An alarm about a thing in trouble shares its row. */
export function troublesOf(status: Status): Trouble[] {
  const found: Found[] = [...sourceTroubles(status), ...builderTroubles(status)];
  found.push(...processTroubles(status, new Set(found.map((trouble) => trouble.subject))));
  found.push(...reasonTroubles(status), ...clockTroubles(status));
  const troubles: Trouble[] = found.map((trouble) => ({ ...trouble, alarm: null }));
  for (const alarm of status.alarms.filter((alarm) => alarm.is_active)) {
    const subject = subjectOf(alarm);
    const same = troubles.find((trouble) => trouble.subject === subject && trouble.alarm === null);
    if (same) {
      same.alarm = alarm;
      if (severityOf(alarm.severity) === "major") same.severity = "major";
    } else {
      const severity = severityOf(alarm.severity) === "major" ? "major" : "minor";
      troubles.push({
        severity,
        subject: subject || alarm.id.replaceAll("-", " "),
        where: "",
        text: alarm.text,
        alarm,
      });
    }
  }
  return troubles.sort((first, second) => troubleRank(first) - troubleRank(second));
}

/** Trouble of which an alarm is acknowledged comes last. */
function troubleRank(trouble: Trouble): number {
  return SEVERITY_RANK[trouble.severity] + (trouble.alarm?.is_acknowledged ? 2 : 0);
}

/** A source that is missing in the latest incomplete events, and in how many of them. */
export interface Absentee {
  source: string;
  where: string;
  events: number;
}

/** Sources that are missing in the latest incomplete events, the most often missing first. */
export function absenteesOf(status: Status): Absentee[] {
  const counted = new Map<string, Absentee>();
  for (const event of status.incomplete_events) {
    for (const missing of event.missing) {
      const name = typeof missing.source === "string" ? missing.source : "?";
      const absentee = counted.get(name) ?? { source: name, where: placeOf(missing), events: 0 };
      absentee.events += 1;
      counted.set(name, absentee);
    }
  }
  return [...counted.values()].sort((first, second) => second.events - first.events);
}

/** Buckets of the ledger, in the order in which they are shown. */
export const BUCKETS = [
  { field: "built", label: "built", isLoss: false },
  { field: "on_the_way", label: "on the way", isLoss: false },
  { field: "rejected", label: "rejected by a filter", isLoss: false },
  { field: "beyond_end", label: "beyond the end", isLoss: false },
  { field: "dropped", label: "dropped by policy", isLoss: true },
  { field: "lost_in_device", label: "lost in device", isLoss: true },
  { field: "late", label: "late", isLoss: true },
  { field: "corrupt", label: "corrupt", isLoss: true },
  { field: "lost", label: "lost", isLoss: true },
] as const;

/** Fragments of a source that were accepted and cannot be recorded any more. */
export function lossOf(source: Source): number {
  return BUCKETS.filter((bucket) => bucket.isLoss).reduce(
    (sum, bucket) => sum + numberOf(source[bucket.field as keyof Source]),
    0,
  );
}
