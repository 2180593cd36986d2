// Rates of the last hour: as the service has them, continued by each status that comes.

import type { HistoryRecord, Status } from "./api.ts";
import { numberOf } from "./read.ts";

const HISTORY_SECONDS = 3600;

type Column = (number | null)[];

interface SourceColumns {
  bytes_per_second: Column;
  backlog: Column;
  lost: Column;
}

/** Returns the last `length` values, with null in front where there are fewer. */
function fitColumn(column: Column, length: number): Column {
  const missing = Math.max(0, length - column.length);
  return [...new Array<null>(missing).fill(null), ...column.slice(column.length + missing - length)];
}

function emptySource(length: number): SourceColumns {
  const column = () => new Array<null>(length).fill(null);
  return { bytes_per_second: column(), backlog: column(), lost: column() };
}

export class History {
  at: number[] = [];
  events_per_second: Column = [];
  bytes_per_second: Column = [];
  incomplete: Column = [];
  sources = new Map<string, SourceColumns>();
  /** Number of points ever added: changes exactly when there is something to draw. */
  version = 0;
  private stepSeconds = 1;
  /** Time of the service less that of this browser. */
  private clockDifference = 0;

  /** Replaces everything by what the service has. `now` is the time of this browser, in seconds. */
  load(record: HistoryRecord, now: number): void {
    const length = record.at.length;
    this.stepSeconds = Math.max(0.1, record.step_seconds);
    this.at = [...record.at];
    this.events_per_second = fitColumn(record.events_per_second, length);
    this.bytes_per_second = fitColumn(record.bytes_per_second, length);
    this.incomplete = fitColumn(record.incomplete, length);
    this.sources = new Map();
    for (const [name, columns] of Object.entries(record.sources)) {
      this.sources.set(name, {
        bytes_per_second: fitColumn(columns.bytes_per_second, length),
        backlog: fitColumn(columns.backlog, length),
        lost: fitColumn(columns.lost, length),
      });
    }
    const last = this.at.at(-1);
    // Less than two steps are the age of the last point. More are clocks that differ.
    const difference = last === undefined ? 0 : last - now;
    this.clockDifference = Math.abs(difference) > 2 * this.stepSeconds ? difference : 0;
    this.version += 1;
  }

  /** Adds the rates of a status, at most one point in each step. */
  append(status: Status, now: number): void {
    const at = Math.floor((now + this.clockDifference) / this.stepSeconds) * this.stepSeconds;
    const last = this.at.at(-1);
    if (last !== undefined && at <= last) return;
    this.at.push(at);
    this.events_per_second.push(numberOf(status.totals.events_per_second));
    this.bytes_per_second.push(numberOf(status.totals.bytes_per_second));
    this.incomplete.push(numberOf(status.totals.incomplete));
    const length = this.at.length;
    for (const source of status.sources) {
      const columns = this.sources.get(source.name) ?? emptySource(length - 1);
      columns.bytes_per_second.push(numberOf(source.bytes_per_second));
      columns.backlog.push(numberOf(source.backlog));
      columns.lost.push(numberOf(source.lost));
      this.sources.set(source.name, columns);
    }
    for (const columns of this.sources.values()) {
      const isAway = columns.lost.length < length;
      if (isAway) for (const column of [columns.bytes_per_second, columns.backlog, columns.lost]) column.push(null);
    }
    this.forgetBefore(at - HISTORY_SECONDS);
    this.version += 1;
  }

  private forgetBefore(time: number): void {
    const first = this.at.findIndex((at) => at >= time);
    if (first <= 0) return;
    this.at.splice(0, first);
    for (const column of [this.events_per_second, this.bytes_per_second, this.incomplete]) column.splice(0, first);
    for (const [name, columns] of this.sources) {
      for (const column of [columns.bytes_per_second, columns.backlog, columns.lost]) column.splice(0, first);
      if (columns.bytes_per_second.every((value) => value === null)) this.sources.delete(name);
    }
  }
}
