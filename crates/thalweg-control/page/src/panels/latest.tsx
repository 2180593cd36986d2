// Latest event of each source: waveforms, image, waterfall, histogram of a feature.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Latest, Status } from "../api.ts";
import { drawColorMap, drawHistogram, drawImage, drawWaveforms, Waterfall, WATERFALL_ROWS } from "../draw.ts";
import type { Scale } from "../draw.ts";
import { LatestFetcher } from "../latest.ts";
import { Choice, Panel } from "../parts.tsx";
import { formatBytes, formatCount, formatText, formatValue } from "../text.ts";

const fetcher = new LatestFetcher();
const MAX_LANES = 8;
const MAX_FEATURES = 32;
const MAX_FEATURE_VALUES = 1_000;
const MIN_WIDTH = 64;
const MAX_WIDTH = 2_048;

type View = "waveform" | "waterfall" | "image" | "features";

/** Fragments of a source that its card has seen, as far as it draws them. */
class Gathered {
  latest: Latest | null = null;
  readonly waterfall = new Waterfall();
  readonly features = new Map<string, number[]>();
  private seen = "";

  /** Takes a fragment; one that is known already changes nothing. */
  add(latest: Latest): void {
    this.latest = latest;
    const event = `${latest.run} ${latest.event_text ?? latest.event}`;
    if (event === this.seen) return;
    this.seen = event;
    const first = latest.waveforms[0];
    if (first) this.waterfall.add(first);
    for (const [name, value] of Object.entries(latest.features).slice(0, MAX_FEATURES)) {
      const values = this.features.get(name) ?? [];
      values.push(value);
      if (values.length > MAX_FEATURE_VALUES) values.shift();
      if (this.features.size < MAX_FEATURES || this.features.has(name)) this.features.set(name, values);
    }
  }
}

function viewsOf(gathered: Gathered): View[] {
  const views: View[] = [];
  if (gathered.latest?.image) views.push("image");
  if ((gathered.latest?.waveforms.length ?? 0) > 0) views.push("waveform", "waterfall");
  if (gathered.features.size > 0) views.push("features");
  return views;
}

/** Calls a function on a canvas after each change. */
function Canvas(props: { class: string; label: string; draw: (canvas: HTMLCanvasElement) => void; drawn: unknown[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    if (canvas.current) props.draw(canvas.current);
  }, props.drawn);
  return <canvas ref={canvas} class={props.class} role="img" aria-label={props.label} />;
}

function ColorMap({ least, greatest }: { least: number; greatest: number }) {
  return (
    <p class="color-map">
      {formatValue(least)}
      <Canvas class="map" label="color map from least to greatest" draw={drawColorMap} drawn={[]} />
      {formatValue(greatest)}
    </p>
  );
}

interface PictureProps {
  latest: Latest;
  gathered: Gathered;
  /** Changes with each fragment and with the colors. */
  version: unknown;
  scale: Scale;
}

function WaveformPicture({ latest, version }: PictureProps) {
  const shown = latest.waveforms.slice(0, MAX_LANES);
  const left = latest.waveforms.length - shown.length;
  return (
    <>
      <Canvas
        class="plot"
        label={`waveforms of ${latest.source}, least and greatest sample of each column`}
        draw={(canvas) => drawWaveforms(canvas, shown)}
        drawn={[version]}
      />
      {left > 0 && <p class="quiet">and {formatCount(left)} more channels</p>}
    </>
  );
}

function ImagePicture({ latest, version, scale }: PictureProps) {
  const [isReadable, setIsReadable] = useState(true);
  const image = latest.image;
  if (!image) return null;
  return (
    <>
      <Canvas
        class="picture"
        label={`image of ${latest.source}`}
        draw={(canvas) => setIsReadable(drawImage(canvas, image, scale))}
        drawn={[version, scale]}
      />
      {!isReadable && <p class="mark major">The image is not as long as its width and height require.</p>}
      <ColorMap least={image.minimum} greatest={image.maximum} />
      <p class="quiet">
        {formatCount(image.full_width)} × {formatCount(image.full_height)} pixels
        {image.full_width !== image.width && `, shown as ${formatCount(image.width)} × ${formatCount(image.height)}`}
      </p>
    </>
  );
}

function WaterfallPicture({ latest, gathered, version, scale }: PictureProps) {
  const [least, greatest] = gathered.waterfall.range;
  return (
    <>
      <Canvas
        class="plot pixels"
        label={`waterfall of ${latest.source}, newest waveform at the top`}
        draw={(canvas) => gathered.waterfall.draw(canvas, scale)}
        drawn={[version, scale]}
      />
      <ColorMap least={least} greatest={greatest} />
      <p class="quiet">
        {formatText(latest.waveforms[0]?.name)}: {formatCount(gathered.waterfall.length)} of up to {WATERFALL_ROWS}{" "}
        waveforms, the newest at the top
      </p>
    </>
  );
}

function FeaturesPicture({ latest, gathered, version }: PictureProps) {
  const [chosen, setChosen] = useState("");
  const names = [...gathered.features.keys()];
  const name = names.includes(chosen) ? chosen : (names[0] ?? "");
  const values = gathered.features.get(name) ?? [];
  return (
    <>
      <label class="select">
        feature{" "}
        <select value={name} onChange={(event) => setChosen(event.currentTarget.value)}>
          {names.map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
      </label>{" "}
      <strong>{formatValue(latest.features[name])}</strong>
      <Canvas
        class="plot short"
        label={`histogram of ${name}`}
        draw={(canvas) => drawHistogram(canvas, values)}
        drawn={[version, name]}
      />
      <p class="quiet">{formatCount(values.length)} events that this page has seen</p>
    </>
  );
}

const PICTURES = {
  waveform: WaveformPicture,
  waterfall: WaterfallPicture,
  image: ImagePicture,
  features: FeaturesPicture,
} as const;

function Card({ source, theme }: { source: string; theme: number }) {
  const card = useRef<HTMLElement>(null);
  const gathered = useRef(new Gathered());
  const [version, setVersion] = useState(0);
  const [failure, setFailure] = useState("");
  const [wanted, setWanted] = useState<View | null>(null);
  const [scale, setScale] = useState<Scale>("linear");
  useEffect(() => {
    const element = card.current;
    if (!element) return undefined;
    const viewer = {
      source,
      width: () => {
        const pixels = Math.round(element.clientWidth * Math.min(2, devicePixelRatio || 1));
        return Math.min(MAX_WIDTH, Math.max(MIN_WIDTH, pixels));
      },
      show: (latest: Latest | null) => {
        if (latest) gathered.current.add(latest);
        setFailure("");
        setVersion((before) => before + 1);
      },
      fail: setFailure,
    };
    let unwatch: (() => void) | null = null;
    const observer = new IntersectionObserver((entries) => {
      const isVisible = entries.at(-1)?.isIntersecting === true;
      if (isVisible && !unwatch) unwatch = fetcher.watch(viewer);
      if (!isVisible && unwatch) {
        unwatch();
        unwatch = null;
      }
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      unwatch?.();
    };
  }, [source]);
  const latest = gathered.current.latest;
  const views = viewsOf(gathered.current);
  const view = wanted && views.includes(wanted) ? wanted : views[0];
  const Picture = view ? PICTURES[view] : null;
  return (
    <article class={failure ? "card old" : "card"} ref={card} data-latest={source}>
      <h3>
        {source} {latest?.is_simulated && <span class="tag">simulated</span>}
      </h3>
      {latest && (
        <p class="quiet">
          run {formatText(latest.run)}, event {formatCount(latest.event, latest.event_text)},{" "}
          {formatBytes(latest.bytes)}
        </p>
      )}
      {failure && (
        <p class={latest ? "mark minor" : "quiet"}>
          {latest ? "No newer event" : "No event"}: {failure}
        </p>
      )}
      {views.length > 1 && view && (
        <Choice legend={`view of ${source}`} options={views} value={view} onChange={setWanted} />
      )}
      {latest && Picture && (
        <Picture latest={latest} gathered={gathered.current} version={`${version} ${theme}`} scale={scale} />
      )}
      {(view === "image" || view === "waterfall") && (
        <Choice legend={`colors of ${source}`} options={["linear", "logarithmic"]} value={scale} onChange={setScale} />
      )}
      {latest && !Picture && <p class="quiet">{formatText(latest.kind)}: there is no picture of this kind.</p>}
      {!latest && !failure && <p class="quiet">no event yet</p>}
    </article>
  );
}

export function LatestPanel({ status, theme }: { status: Status; theme: number }) {
  const names = [...new Set(status.sources.map((source) => source.name))].filter((name) => name !== "");
  return (
    <Panel id="latest" title="Latest event of each source">
      <div class="cards-of-sources">
        {names.map((name) => (
          <Card key={name} source={name} theme={theme} />
        ))}
      </div>
      {names.length === 0 && <p class="quiet">No source is known yet.</p>}
    </Panel>
  );
}
