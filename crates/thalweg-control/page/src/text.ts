// Numbers and times as text. Each function takes what came over the network: a value that is missing or no number
// gives a dash.

export const DASH = "–";
/** Narrow space between groups of three digits, at which no line breaks. */
const GROUP_SEPARATOR = "\u202f";
/** Greatest number of 64 bits, about: greater ones are no counts. */
const MAX_COUNT = 2 ** 64;
const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
const COUNT_UNITS = ["", "k", "M", "G", "T", "P", "E"];

function isNumber(value: unknown): value is number {
  return typeof value === "number" && Number.isFinite(value);
}

/** Text as it came; a dash where there is none. */
export function formatText(value: unknown): string {
  if (typeof value === "number") return formatCount(value);
  return typeof value === "string" && value !== "" ? value : DASH;
}

function groupDigits(digits: string): string {
  return digits.replace(/\B(?=(\d{3})+$)/g, GROUP_SEPARATOR);
}

/** A whole number with all its digits. `exact` is the same as text, and is preferred. */
export function formatCount(value: unknown, exact?: unknown): string {
  if (typeof exact === "string" && /^\d{1,20}$/.test(exact)) return groupDigits(exact);
  if (!isNumber(value)) return DASH;
  const whole = Math.round(Math.abs(value));
  if (whole > MAX_COUNT) return formatValue(value);
  const sign = value < 0 && whole > 0 ? "−" : "";
  return sign + groupDigits(BigInt(whole).toString());
}

/** Three significant digits with a unit of thousands. */
function formatScaled(value: number, units: string[], unit: string): string {
  let scaled = Math.abs(value);
  let power = 0;
  while (scaled >= 999.5 && power < units.length - 1) {
    scaled /= 1000;
    power += 1;
  }
  // Bytes and events are whole; rates below one keep two digits.
  const digits = scaled >= 99.95 || (power === 0 && Number.isInteger(scaled)) ? 0 : scaled >= 9.995 ? 1 : 2;
  const sign = value < 0 && scaled > 0 ? "−" : "";
  const text = `${sign}${scaled.toFixed(digits)} ${units[power]}${unit}`;
  return text.trim().replace(" ", "\u00a0");
}

export function formatBytes(value: unknown): string {
  return isNumber(value) ? formatScaled(value, BYTE_UNITS, "") : DASH;
}

export function formatByteRate(value: unknown): string {
  return isNumber(value) ? formatScaled(value, BYTE_UNITS, "/s") : DASH;
}

/** Events or fragments in a second, without their name. */
export function formatRate(value: unknown): string {
  return isNumber(value) ? formatScaled(value, COUNT_UNITS, "/s") : DASH;
}

/** A count in three significant digits, for axes. */
export function formatShort(value: unknown): string {
  return isNumber(value) ? formatScaled(value, COUNT_UNITS, "").replace("\u00a0", "") : DASH;
}

export function formatPercent(value: unknown): string {
  if (!isNumber(value)) return DASH;
  const digits = value > 0 && value < 9.95 ? 1 : 0;
  return `${value > 0 && value < 0.05 ? "< 0.1" : value.toFixed(digits)}\u00a0%`;
}

/** A duration in its two leading units. */
export function formatSeconds(value: unknown): string {
  if (!isNumber(value)) return DASH;
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size === 0) return "0\u00a0s";
  if (size < 1e-3) return `${sign}${(size * 1e6).toFixed(0)}\u00a0µs`;
  if (size < 1) return `${sign}${(size * 1e3).toFixed(size < 0.01 ? 1 : 0)}\u00a0ms`;
  if (size < 59.95) return `${sign}${size.toFixed(1)}\u00a0s`;
  if (size < 3600) return `${sign}${Math.floor(size / 60)}\u00a0min ${Math.floor(size % 60)}\u00a0s`;
  if (size < 172800) return `${sign}${Math.floor(size / 3600)}\u00a0h ${Math.floor((size % 3600) / 60)}\u00a0min`;
  return `${sign}${groupDigits(String(Math.floor(size / 86400)))}\u00a0days`;
}

/** Time of a run that goes on, in hours, minutes and seconds. */
export function formatStopwatch(value: unknown): string {
  if (!isNumber(value) || value < 0) return DASH;
  const whole = Math.floor(value);
  const two = (part: number) => String(part).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

/** Time of day here; with the date if that is not today's. */
export function formatTime(at: unknown, now: Date = new Date()): string {
  if (!isNumber(at) || at <= 0) return DASH;
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return DASH;
  const two = (part: number) => String(part).padStart(2, "0");
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  if (date.toDateString() === now.toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

/** A measured value of any size. */
export function formatValue(value: unknown): string {
  if (!isNumber(value)) return DASH;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return formatCount(value);
  const text = size >= 1e6 || size < 1e-3 ? value.toExponential(2) : value.toPrecision(4);
  return text.replace("-", "−").replace("e+", "e");
}
