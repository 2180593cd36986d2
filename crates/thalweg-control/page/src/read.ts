// Answers of the service, brought into the shape that the page relies on: lists are lists of objects, objects are objects.
// Single values are checked where they become text (text.ts).

import { COMMAND_NAMES, PROCESS_ACTIONS } from "./api.ts";
import type { HistoryRecord, Latest, Legality, Message, Process, RunRecord, Status } from "./api.ts";

type Fields = Record<string, unknown>;

function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function objectOf(value: unknown): Fields {
  return isObject(value) ? value : {};
}

function objectOrNull(value: unknown): Fields | null {
  return isObject(value) ? value : null;
}

function objectsOf(value: unknown): Fields[] {
  return Array.isArray(value) ? value.filter(isObject) : [];
}

function textsOf(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((item): item is string => typeof item === "string") : [];
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** A number; 0 for anything else, so that sums and comparisons are defined. */
export function numberOf(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) ? value : 0;
}

/** Numbers, with null where there is none. */
export function numbersOf(value: unknown): (number | null)[] {
  if (!Array.isArray(value)) return [];
  return value.map((item) => (typeof item === "number" && Number.isFinite(item) ? item : null));
}

function recordOf(value: unknown): RunRecord | null {
  const fields = objectOrNull(value);
  if (!fields) return null;
  const record = {
    ...fields,
    reasons: textsOf(fields.reasons),
    flag: objectOrNull(fields.flag),
    notes: objectsOf(fields.notes),
  };
  return record as unknown as RunRecord;
}

export function recordsOf(value: unknown): RunRecord[] {
  return objectsOf(objectOf(value).runs).map((run) => recordOf(run) as RunRecord);
}

export function messageOf(value: unknown): Message | null {
  return objectOrNull(value) as Message | null;
}

/** What is known about some names: whether each is legal, and if not, why. */
function legalitiesOf(names: readonly string[], value: unknown): Record<string, Legality> {
  const given = objectOf(value);
  const known = names.filter((name) => isObject(given[name]));
  return Object.fromEntries(
    known.map((name) => {
      const { legal, reason } = objectOf(given[name]);
      return [name, { legal: legal === true, reason: textOf(reason) }];
    }),
  );
}

export function processesOf(value: unknown): Process[] {
  return objectsOf(value).map((fields) => {
    const process = { ...fields, node: textOf(fields.node), actions: legalitiesOf(PROCESS_ACTIONS, fields.actions) };
    return process as unknown as Process;
  });
}

export function linesOf(value: unknown): string[] {
  return textsOf(objectOf(value).lines);
}

/** A status, or null where it is none at all. */
export function statusOf(value: unknown): Status | null {
  const fields = objectOrNull(value);
  if (!fields || typeof fields.state !== "string") return null;
  const status = {
    ...fields,
    id: numberOf(fields.id),
    service: objectOf(fields.service),
    waits_for: textsOf(fields.waits_for),
    reasons: textsOf(fields.reasons),
    run: objectOrNull(fields.run),
    last_run: recordOf(fields.last_run),
    disk: objectOf(fields.disk),
    commands: legalitiesOf(COMMAND_NAMES, fields.commands),
    totals: objectOf(fields.totals),
    ledger: objectOf(fields.ledger),
    sources: objectsOf(fields.sources).map((source) => ({
      ...source,
      name: textOf(source.name),
      trouble: textOf(source.trouble),
    })),
    builders: objectsOf(fields.builders).map((builder) => ({ ...builder, name: textOf(builder.name) })),
    incomplete_events: objectsOf(fields.incomplete_events).map((event) => ({
      ...event,
      missing: objectsOf(event.missing),
    })),
    draining: objectOrNull(fields.draining),
    clocks: objectsOf(fields.clocks),
    alarms: objectsOf(fields.alarms).map((alarm) => ({ ...alarm, id: textOf(alarm.id) })),
    messages: objectsOf(fields.messages),
    processes: processesOf(fields.processes),
  };
  return status as unknown as Status;
}

/** Bytes of a number of a waveform, and of a pixel. */
const [SAMPLE_BYTES, PIXEL_BYTES] = [8, 2];
/** Bytes of the length before the object. */
const PREFIX_BYTES = 4;

/** Latest fragment in its binary form: the length of a JSON object, the object, and pixels or samples. Null for none. */
export function latestOf(body: ArrayBuffer): Latest | null {
  if (body.byteLength < PREFIX_BYTES) return null;
  const end = PREFIX_BYTES + new DataView(body).getUint32(0, true);
  if (end > body.byteLength) return null;
  const fields = objectOrNull(JSON.parse(new TextDecoder().decode(new Uint8Array(body, PREFIX_BYTES, end - PREFIX_BYTES))));
  if (!fields) return null;
  const numbers = new DataView(body, end);
  const described = objectsOf(fields.waveforms);
  const columns = Math.floor(numbers.byteLength / SAMPLE_BYTES / Math.max(1, 2 * described.length));
  const samplesAt = (row: number) =>
    Array.from({ length: columns }, (_, column) => {
      const sample = numbers.getFloat64((row * columns + column) * SAMPLE_BYTES, true);
      return Number.isFinite(sample) ? sample : null;
    });
  const waveforms = described.map((waveform, channel) => ({
    name: textOf(waveform.name),
    min: samplesAt(2 * channel),
    max: samplesAt(2 * channel + 1),
  }));
  const pixels = () =>
    Uint16Array.from({ length: numbers.byteLength / PIXEL_BYTES }, (_, index) => numbers.getUint16(index * PIXEL_BYTES, true));
  const image = objectOrNull(fields.image);
  const features = Object.entries(objectOf(fields.features)).filter(([, number]) => typeof number === "number");
  const latest = {
    ...fields,
    waveforms,
    image: image && { ...image, pixels: pixels() },
    features: Object.fromEntries(features),
  };
  return latest as unknown as Latest;
}

export function historyOf(value: unknown): HistoryRecord {
  const fields = objectOf(value);
  const sources = Object.entries(objectOf(fields.sources)).map(([name, series]) => {
    const { bytes_per_second, backlog, lost } = objectOf(series);
    return [
      name,
      { bytes_per_second: numbersOf(bytes_per_second), backlog: numbersOf(backlog), lost: numbersOf(lost) },
    ];
  });
  return {
    step_seconds: numberOf(fields.step_seconds) || 1,
    at: numbersOf(fields.at).map(numberOf),
    events_per_second: numbersOf(fields.events_per_second),
    bytes_per_second: numbersOf(fields.bytes_per_second),
    incomplete: numbersOf(fields.incomplete),
    sources: Object.fromEntries(sources),
  };
}
