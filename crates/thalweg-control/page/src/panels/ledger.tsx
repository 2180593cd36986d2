// Totals of the run, and the ledger as it grows.

import { useRef } from "preact/hooks";
import type { Ledger, Status } from "../api.ts";
import { Icon, Panel } from "../parts.tsx";
import { numberOf } from "../read.ts";
import { formatByteRate, formatBytes, formatCount, formatPercent, formatRate } from "../text.ts";
import { BUCKETS } from "../trouble.ts";

export function Totals({ status }: { status: Status }) {
  const { totals } = status;
  const tiles = [
    {
      label: "events",
      value: formatRate(totals.events_per_second),
      total: formatCount(totals.events, totals.events_text),
    },
    { label: "data", value: formatByteRate(totals.bytes_per_second), total: formatBytes(totals.bytes) },
    {
      label: "back-pressure",
      value: formatPercent(totals.stalled_percent),
      total: `${formatCount(totals.stalls)} stalls`,
    },
  ];
  return (
    <dl class="totals" id="totals">
      {tiles.map((tile) => (
        <div key={tile.label}>
          <dt>{tile.label}</dt>
          <dd>
            <span class="big">{tile.value}</span>
            <span class="quiet">{tile.total}</span>
          </dd>
        </div>
      ))}
    </dl>
  );
}

type Field = keyof Ledger;
const SAMPLE_MS = 1_000;

/** Growth of each bucket in a second, from two readings that are a second or more apart. */
function useGrowth(ledger: Ledger): Partial<Record<Field, number>> {
  const readings = useRef<{ at: number; ledger: Ledger; growth: Partial<Record<Field, number>> } | null>(null);
  const at = performance.now();
  const before = readings.current;
  if (!before || numberOf(ledger.accepted) < numberOf(before.ledger.accepted)) {
    readings.current = { at, ledger, growth: {} };
  } else if (at - before.at >= SAMPLE_MS) {
    const seconds = (at - before.at) / 1000;
    const growth: Partial<Record<Field, number>> = {};
    for (const field of ["accepted", ...BUCKETS.map((bucket) => bucket.field)] as Field[]) {
      growth[field] = (numberOf(ledger[field]) - numberOf(before.ledger[field])) / seconds;
    }
    readings.current = { at, ledger, growth };
  }
  return readings.current?.growth ?? {};
}

/** Whether the buckets add up to what was accepted. */
function Balance({ ledger }: { ledger: Ledger }) {
  if (typeof ledger.accepted !== "number") return null;
  const sum = BUCKETS.reduce((total, bucket) => total + numberOf(ledger[bucket.field]), 0);
  const difference = numberOf(ledger.accepted) - sum;
  if (difference === 0) {
    return (
      <span class="mark ok">
        <Icon name="check" /> adds up
      </span>
    );
  }
  return (
    <span class="mark major">
      <Icon name="major" /> {formatCount(Math.abs(difference))} {difference > 0 ? "unaccounted" : "too many"}
    </span>
  );
}

export function LedgerPanel({ status }: { status: Status }) {
  const { ledger } = status;
  const growth = useGrowth(ledger);
  const accepted = numberOf(ledger.accepted);
  const rows: { field: Field; label: string; isLoss: boolean }[] = [
    { field: "accepted", label: "accepted", isLoss: false },
    ...BUCKETS,
  ];
  return (
    <Panel id="ledger" title="Ledger" aside={<Balance ledger={ledger} />}>
      <table class="ledger">
        <thead>
          <tr>
            <th scope="col">Fragments</th>
            <th scope="col">Number</th>
            <th scope="col">Share</th>
            <th scope="col">Growth</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ field, label, isLoss }) => {
            const isBad = isLoss && numberOf(ledger[field]) > 0;
            const rate = growth[field] ?? 0;
            return (
              <tr key={field} class={field === "accepted" ? "sum" : ""}>
                <th scope="row">
                  {isBad ? (
                    <span class="mark minor">
                      <Icon name="minor" /> {label}
                    </span>
                  ) : (
                    label
                  )}
                </th>
                <td>{formatCount(ledger[field])}</td>
                <td>
                  {field === "accepted" || accepted === 0
                    ? ""
                    : formatPercent((100 * numberOf(ledger[field])) / accepted)}
                </td>
                <td>{rate === 0 ? "" : `${rate > 0 ? "+" : ""}${formatRate(rate)}`}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </Panel>
  );
}
