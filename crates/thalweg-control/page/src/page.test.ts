// Tests of what the page computes; what it shows is tested in a browser (python/tests/test_control_page.py).

import assert from "node:assert/strict";
import { test } from "node:test";
import { binValues, pixelsOf, shadeOf, Waterfall } from "./draw.ts";
import { History } from "./history.ts";
import { historyOf, latestOf, statusOf } from "./read.ts";
import {
  DASH,
  formatByteRate,
  formatCount,
  formatPercent,
  formatRate,
  formatSeconds,
  formatStopwatch,
  formatTime,
  formatValue,
} from "./text.ts";
import { absenteesOf, troublesOf } from "./trouble.ts";
import type { Image, Status } from "./api.ts";

function status(fields: object): Status {
  const made = statusOf({ id: 1, state: "running", service: { since_at: 1 }, ...fields });
  assert.ok(made);
  return made;
}

/** A fragment in its binary form. */
function bodyOf(fields: object, numbers = new Uint8Array()): ArrayBuffer {
  const head = new TextEncoder().encode(JSON.stringify(fields));
  const body = new Uint8Array(4 + head.length + numbers.length);
  new DataView(body.buffer).setUint32(0, head.length, true);
  body.set(head, 4);
  body.set(numbers, 4 + head.length);
  return body.buffer;
}

const plain = (text: string) => text.replace(/[\u00a0\u202f]/g, " ");

test("numbers have units of thousands, and counts all their digits", () => {
  assert.equal(plain(formatCount(4096)), "4 096");
  assert.equal(plain(formatCount(9007199254740992, "9007199254740993")), "9 007 199 254 740 993");
  assert.equal(plain(formatCount(-1200)), "−1 200");
  assert.equal(formatCount(1e300), "1.00e300");
  assert.equal(plain(formatByteRate(941e6)), "941 MB/s");
  assert.equal(plain(formatByteRate(999_999)), "1.00 MB/s");
  assert.equal(plain(formatByteRate(0)), "0 B/s");
  assert.equal(plain(formatRate(12.345)), "12.3 /s");
  assert.equal(plain(formatRate(1000)), "1.00 k/s");
  assert.equal(plain(formatPercent(0.01)), "< 0.1 %");
  assert.equal(plain(formatPercent(23.4)), "23 %");
  assert.equal(plain(formatSeconds(0.00012)), "120 µs");
  assert.equal(plain(formatSeconds(11520)), "3 h 12 min");
  assert.equal(formatStopwatch(3723.9), "1:02:03");
  assert.equal(formatValue(0.0001), "1.00e−4");
});

test("a value that is missing or of another type is a dash", () => {
  const formats = [
    formatCount,
    formatByteRate,
    formatRate,
    formatPercent,
    formatSeconds,
    formatStopwatch,
    formatTime,
    formatValue,
  ];
  for (const format of formats) {
    for (const value of [undefined, null, NaN, Infinity, "7", {}, []]) assert.equal(format(value), DASH);
  }
  assert.equal(formatTime(1e300), DASH);
});

test("anything from the network becomes a status or none", () => {
  for (const value of [null, 7, "x", [], {}, { state: 3 }]) assert.equal(statusOf(value), null);
  const odd = statusOf({
    state: "running",
    sources: [null, "x", { name: 5 }],
    commands: { start: 1, stop: { legal: "yes" } },
    alarms: 3,
  });
  assert.ok(odd);
  assert.deepEqual(
    odd.sources.map((source) => source.name),
    [""],
  );
  assert.deepEqual(odd.commands, { stop: { legal: false, reason: "" } });
  assert.deepEqual(troublesOf(odd), []);
  assert.deepEqual(latestOf(bodyOf({ waveforms: 3, features: { a: 1, b: "x" } }))?.features, { a: 1 });
  for (const bad of [[], [9, 0, 0, 0, 1], [4, 0, 0, 0, 110, 117, 108, 108]]) {
    assert.equal(latestOf(Uint8Array.from(bad).buffer), null);
  }
  assert.deepEqual(historyOf("no").at, []);
});

test("the broken source comes first, in one row with its alarm; what is acknowledged comes last", () => {
  const alarm = { severity: "major", is_active: true, is_acknowledged: false, since_at: 1, acknowledged_by: null };
  const troubles = troublesOf(
    status({
      clocks: [{ node: "adc-5", host: "f", offset_seconds: 0.5, is_synchronized: false }],
      sources: [
        { name: "adc-0", severity: "ok", trouble: "" },
        { name: "adc-1", severity: "minor", trouble: "busy", host: "b" },
        { name: "adc-3", severity: "major", trouble: "no data", host: "d", address: "10.0.0.5:41003" },
      ],
      alarms: [
        { ...alarm, id: "disk", text: "the disk is full", is_acknowledged: true },
        { ...alarm, id: "source-silent:adc-3", text: "rate 0" },
        { ...alarm, id: "unsynchronized-clock:f", severity: "minor", text: "the clock of f is not synchronized" },
      ],
    }),
  );
  assert.deepEqual(
    troubles.map((trouble) => trouble.subject),
    ["adc-3", "adc-1", "clock of f", "disk"],
  );
  assert.equal(troubles[0]?.where, "host d, 10.0.0.5:41003");
  assert.equal(troubles[0]?.alarm?.id, "source-silent:adc-3");
});

test("who is missing most often is named first", () => {
  const missing = (source: string) => ({ source, host: "h", address: null });
  const absentees = absenteesOf(
    status({
      incomplete_events: [{ missing: [missing("a")] }, { missing: [missing("b")] }, { missing: [missing("b")] }],
    }),
  );
  assert.deepEqual(
    absentees.map(({ source, where, events }) => [source, where, events]),
    [
      ["b", "host h", 2],
      ["a", "host h", 1],
    ],
  );
});

test("the history keeps one point a second and one hour, also of sources that come and go", () => {
  const history = new History();
  history.load(
    historyOf({ step_seconds: 1, at: [100, 101], events_per_second: [1, null], sources: { a: { lost: [5, 6] } } }),
    101.5,
  );
  const at = (seconds: number, names: string[]) =>
    history.append(status({ sources: names.map((name) => ({ name, bytes_per_second: 7 })) }), seconds);
  at(102.1, ["a", "b"]);
  at(102.3, ["a", "b"]);
  at(103, ["b"]);
  assert.deepEqual(history.at, [100, 101, 102, 103]);
  assert.deepEqual(history.events_per_second, [1, null, 0, 0]);
  assert.deepEqual(history.sources.get("a")?.lost, [5, 6, 0, null]);
  assert.deepEqual(history.sources.get("b")?.bytes_per_second, [null, null, 7, 7]);
  at(3702.5, ["b"]);
  assert.deepEqual(history.at, [102, 103, 3702]);
  assert.deepEqual(history.sources.get("b")?.bytes_per_second, [7, 7, 7]);
  at(7303, ["b"]);
  assert.deepEqual([history.at.length, history.sources.size], [1, 1]);
});

test("pixels and samples follow the object that describes them", () => {
  const image = { width: 2, height: 1, minimum: 0, maximum: 9 };
  const pixels = new Uint8Array(Uint16Array.of(0, 65535).buffer);
  assert.deepEqual([...(latestOf(bodyOf({ image }, pixels))?.image?.pixels ?? [])], [0, 65535]);
  const samples = new Uint8Array(Float64Array.of(1, NaN, 2, NaN, 3, 4, 5, 6).buffer);
  const waveforms = [{ name: "ch0" }, { name: "ch1" }];
  assert.deepEqual(latestOf(bodyOf({ waveforms }, samples))?.waveforms, [
    { name: "ch0", min: [1, null], max: [2, null] },
    { name: "ch1", min: [3, 4], max: [5, 6] },
  ]);
});

test("an image is drawn only if it is as long as it promises", () => {
  const image = { width: 2, height: 2, pixels: Uint16Array.of(0, 256, 65535, 7) } as Image;
  assert.deepEqual([...(pixelsOf(image) ?? [])], [0, 256, 65535, 7]);
  for (const bad of [
    { width: 3 },
    { height: -1 },
    { width: 1.5 },
    { width: 1e9, height: 1e9 },
    { pixels: Uint16Array.of(1, 2, 3) },
  ]) {
    assert.equal(pixelsOf({ ...image, ...bad } as Image), null);
  }
  assert.deepEqual(
    [0, 50, 100, 300].map((value) => shadeOf(value, 0, 100, "linear")),
    [0, 128, 255, 255],
  );
  assert.deepEqual([shadeOf(5, 5, 5, "logarithmic"), shadeOf(9, 0, 9, "logarithmic")], [0, 255]);
});

test("a waterfall begins anew when the number of columns changes, and a histogram counts every value", () => {
  const waterfall = new Waterfall();
  for (let row = 0; row < 200; row += 1) waterfall.add({ name: "a", min: [0, 1], max: [2, 3] });
  assert.equal(waterfall.length, 128);
  waterfall.add({ name: "a", min: [0], max: [2] });
  assert.equal(waterfall.length, 1);
  const { counts } = binValues([1, 1, 2, 3, 3, 3]);
  assert.equal(
    counts.reduce((sum, count) => sum + count),
    6,
  );
  assert.equal(
    binValues([4, 4]).counts.reduce((sum, count) => sum + count),
    2,
  );
});
