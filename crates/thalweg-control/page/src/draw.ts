// Drawing on canvases: waveforms, images, waterfalls, histograms.

import type { Image, Waveform } from "./api.ts";
import { formatValue } from "./text.ts";

/** Colors of the style sheet that drawings use, each the text color of a class. */
export type ColorName = "ink" | "grid" | "line";

/** Color of a class, as it is inside of an element. */
export function colorOf(element: Element, name: ColorName): string {
  const probe = document.createElement("span");
  probe.className = `color-${name}`;
  element.appendChild(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

/** Anchors of the color map viridis, whose lightness rises evenly: it reads the same without color vision. */
const VIRIDIS_ANCHORS: readonly (readonly [number, number, number])[] = [
  [68, 1, 84],
  [72, 26, 108],
  [71, 47, 125],
  [65, 68, 135],
  [57, 86, 140],
  [49, 104, 142],
  [42, 120, 142],
  [35, 136, 142],
  [31, 152, 139],
  [34, 168, 132],
  [53, 183, 121],
  [84, 197, 104],
  [122, 209, 81],
  [165, 219, 54],
  [210, 226, 27],
  [253, 231, 37],
];
const MAP_SIZE = 256;

/** The color map as 32-bit pixels (little-endian RGBA), from least to greatest. */
export const VIRIDIS: Uint32Array = Uint32Array.from({ length: MAP_SIZE }, (_, index) => {
  const position = (index / (MAP_SIZE - 1)) * (VIRIDIS_ANCHORS.length - 1);
  const below = VIRIDIS_ANCHORS[Math.floor(position)] ?? [0, 0, 0];
  const above = VIRIDIS_ANCHORS[Math.ceil(position)] ?? below;
  const share = position - Math.floor(position);
  const [red, green, blue] = below.map((part, channel) => Math.round(part + share * ((above[channel] ?? part) - part)));
  return ((255 << 24) | ((blue ?? 0) << 16) | ((green ?? 0) << 8) | (red ?? 0)) >>> 0;
});

/** Sizes a canvas to its place in the page, in device pixels. Returns null while it has no place. */
function prepare(canvas: HTMLCanvasElement): { context: CanvasRenderingContext2D; ratio: number } | null {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const width = Math.round(canvas.clientWidth * ratio);
  const height = Math.round(canvas.clientHeight * ratio);
  const context = canvas.getContext("2d");
  if (!context || width === 0 || height === 0) return null;
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  context.clearRect(0, 0, width, height);
  context.font = `${11 * ratio}px system-ui, sans-serif`;
  return { context, ratio };
}

export function rangeOf(waveform: Waveform): [number, number] {
  let [least, greatest] = [Infinity, -Infinity];
  for (const value of waveform.min) if (value !== null) least = Math.min(least, value);
  for (const value of waveform.max) if (value !== null) greatest = Math.max(greatest, value);
  return least <= greatest ? [least, greatest] : [0, 0];
}

/** Draws each channel in a lane of its own: for each column a line from the least to the greatest sample. */
export function drawWaveforms(canvas: HTMLCanvasElement, waveforms: Waveform[]): void {
  const prepared = prepare(canvas);
  if (!prepared) return;
  const { context, ratio } = prepared;
  const parent = canvas.parentElement ?? canvas;
  const [ink, grid, line] = [colorOf(parent, "ink"), colorOf(parent, "grid"), colorOf(parent, "line")];
  const laneHeight = canvas.height / Math.max(1, waveforms.length);
  waveforms.forEach((waveform, lane) => {
    const [least, greatest] = rangeOf(waveform);
    const span = greatest - least || 1;
    const top = lane * laneHeight;
    const yOf = (value: number) => top + laneHeight - 2 - ((value - least) / span) * (laneHeight - 4);
    context.strokeStyle = grid;
    context.lineWidth = 1;
    context.strokeRect(0.5, top + 0.5, canvas.width - 1, laneHeight - 1);
    context.fillStyle = line;
    context.beginPath();
    const columns = Math.min(waveform.min.length, waveform.max.length);
    const columnWidth = canvas.width / Math.max(1, columns);
    for (let column = 0; column < columns; column += 1) {
      const [lowest, highest] = [waveform.min[column] ?? null, waveform.max[column] ?? null];
      if (lowest === null || highest === null) continue;
      const [low, high] = [yOf(lowest), yOf(highest)];
      context.rect(column * columnWidth, high, Math.max(1, columnWidth), Math.max(ratio, low - high));
    }
    context.fill();
    context.fillStyle = ink;
    if (laneHeight > 26 * ratio) {
      context.fillText(`${waveform.name}  ${formatValue(greatest)}`, 4 * ratio, top + 12 * ratio);
      context.fillText(formatValue(least), 4 * ratio, top + laneHeight - 4 * ratio);
    }
  });
}

/** Greatest pixel of an image, which stands for its `maximum`. */
const MAX_PIXEL = 65_535;
const MAX_IMAGE_PIXELS = 4_194_304;

/** Pixels of an image; null where they are not as many as its width and height promise. */
export function pixelsOf(image: Image): Uint16Array | null {
  const { width, height, pixels } = image;
  const isSize = (size: unknown) => Number.isInteger(size) && (size as number) > 0;
  if (!isSize(width) || !isSize(height) || width * height > MAX_IMAGE_PIXELS) return null;
  return pixels.length === width * height ? pixels : null;
}

export type Scale = "linear" | "logarithmic";

/** Place of a value in the color map, 0 to 255. */
export function shadeOf(value: number, least: number, greatest: number, scale: Scale): number {
  const span = greatest - least;
  if (!(span > 0)) return 0;
  const above = Math.min(span, Math.max(0, value - least));
  const share = scale === "linear" ? above / span : Math.log1p(above) / Math.log1p(span);
  return Math.round(share * (MAP_SIZE - 1));
}

/** Draws an image at its own size; the style sheet scales it. Returns whether there was one. */
export function drawImage(canvas: HTMLCanvasElement, image: Image, scale: Scale): boolean {
  const values = pixelsOf(image);
  const context = canvas.getContext("2d");
  if (!values || !context) return false;
  if (canvas.width !== image.width || canvas.height !== image.height) {
    canvas.width = image.width;
    canvas.height = image.height;
  }
  const drawn = context.createImageData(image.width, image.height);
  const colors = new Uint32Array(drawn.data.buffer);
  const span = image.maximum - image.minimum;
  for (let index = 0; index < values.length; index += 1) {
    const above = ((values[index] ?? 0) / MAX_PIXEL) * span;
    colors[index] = VIRIDIS[shadeOf(above, 0, span, scale)] ?? 0;
  }
  context.putImageData(drawn, 0, 0);
  return true;
}

/** Draws the color map from left to right. */
export function drawColorMap(canvas: HTMLCanvasElement): void {
  const context = canvas.getContext("2d");
  if (!context) return;
  canvas.width = MAP_SIZE;
  canvas.height = 1;
  const drawn = context.createImageData(MAP_SIZE, 1);
  new Uint32Array(drawn.data.buffer).set(VIRIDIS);
  context.putImageData(drawn, 0, 0);
}

export const WATERFALL_ROWS = 128;

/** Latest waveforms of one channel, the newest at the top. */
export class Waterfall {
  private rows: (number | null)[][] = [];
  range: [number, number] = [0, 0];

  /** Adds the middle between least and greatest sample of each column. */
  add(waveform: Waveform): void {
    const row = waveform.min.map((low, column) => (low === null ? null : (low + (waveform.max[column] ?? low)) / 2));
    if (row.length !== this.rows[0]?.length) this.rows = [];
    this.rows.unshift(row);
    this.rows.length = Math.min(this.rows.length, WATERFALL_ROWS);
  }

  get length(): number {
    return this.rows.length;
  }

  draw(canvas: HTMLCanvasElement, scale: Scale): void {
    const width = this.rows[0]?.length ?? 0;
    const context = canvas.getContext("2d");
    if (!context || width === 0) return;
    let [least, greatest] = [Infinity, -Infinity];
    for (const row of this.rows) {
      for (const value of row) {
        if (value === null) continue;
        least = Math.min(least, value);
        greatest = Math.max(greatest, value);
      }
    }
    this.range = [least, greatest];
    canvas.width = width;
    canvas.height = WATERFALL_ROWS;
    const drawn = context.createImageData(width, WATERFALL_ROWS);
    const colors = new Uint32Array(drawn.data.buffer);
    this.rows.forEach((row, line) => {
      row.forEach((value, column) => {
        if (value === null) return;
        colors[line * width + column] = VIRIDIS[shadeOf(value, least, greatest, scale)] ?? 0;
      });
    });
    context.putImageData(drawn, 0, 0);
  }
}

const HISTOGRAM_BINS = 40;

/** Counts values in bins of one width from the least to the greatest. */
export function binValues(values: readonly number[]): { counts: number[]; least: number; greatest: number } {
  let [least, greatest] = [Infinity, -Infinity];
  for (const value of values) {
    least = Math.min(least, value);
    greatest = Math.max(greatest, value);
  }
  const counts = new Array<number>(HISTOGRAM_BINS).fill(0);
  const span = greatest - least;
  for (const value of values) {
    const bin = span > 0 ? Math.floor(((value - least) / span) * HISTOGRAM_BINS) : HISTOGRAM_BINS / 2;
    const place = Math.min(HISTOGRAM_BINS - 1, bin);
    counts[place] = (counts[place] ?? 0) + 1;
  }
  return { counts, least, greatest };
}

export function drawHistogram(canvas: HTMLCanvasElement, values: readonly number[]): void {
  const prepared = prepare(canvas);
  if (!prepared || values.length === 0) return;
  const { context, ratio } = prepared;
  const parent = canvas.parentElement ?? canvas;
  const { counts, least, greatest } = binValues(values);
  const most = Math.max(...counts);
  const base = canvas.height - 16 * ratio;
  const barWidth = canvas.width / counts.length;
  context.fillStyle = colorOf(parent, "line");
  counts.forEach((count, bin) => {
    const height = (count / most) * (base - 14 * ratio);
    context.fillRect(bin * barWidth, base - height, Math.max(1, barWidth - 1), height);
  });
  context.fillStyle = colorOf(parent, "grid");
  context.fillRect(0, base, canvas.width, ratio);
  context.fillStyle = colorOf(parent, "ink");
  context.fillText(formatValue(least), 2 * ratio, canvas.height - 3 * ratio);
  context.textAlign = "right";
  context.fillText(formatValue(greatest), canvas.width - 2 * ratio, canvas.height - 3 * ratio);
  context.fillText(`at most ${formatValue(most)} in a bin`, canvas.width - 2 * ratio, 11 * ratio);
  context.textAlign = "left";
}
