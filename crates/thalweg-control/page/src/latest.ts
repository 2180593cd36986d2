// Fetches the latest fragments of the sources that are on the screen: one request at a time, each source in turn, and
// none while the page is hidden. A slow network or service makes fewer pictures, never older ones.

import type { Latest } from "./api.ts";
import { latestOf } from "./read.ts";
import { getBytes, RequestError } from "./service.ts";

/** Least time between two requests for the same source: 10 Hz. */
const SOURCE_INTERVAL_MS = 100;
/** The same while its event does not change, or cannot be had. */
const QUIET_INTERVAL_MS = 500;

export interface Viewer {
  source: string;
  /** Columns that the screen can show. */
  width: () => number;
  /** Called with null while there is no fragment. */
  show: (latest: Latest | null) => void;
  fail: (reason: string) => void;
}

interface Watched {
  viewer: Viewer;
  dueAt: number;
  event: string;
}

export class LatestFetcher {
  private readonly watched = new Set<Watched>();
  private isFetching = false;
  private timer = 0;
  /** Ends the request under way when its viewer goes out of sight. */
  private current: { watched: Watched; abort: AbortController } | null = null;

  constructor() {
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.current?.abort.abort();
      else this.schedule();
    });
  }

  /** Fetches for a viewer until the function that is returned is called. */
  watch(viewer: Viewer): () => void {
    const watched = { viewer, dueAt: 0, event: "" };
    this.watched.add(watched);
    this.schedule();
    return () => {
      this.watched.delete(watched);
      if (this.current?.watched === watched) this.current.abort.abort();
    };
  }

  private schedule(): void {
    if (this.isFetching || document.hidden || this.watched.size === 0) return;
    const [first] = [...this.watched].sort((a, b) => a.dueAt - b.dueAt);
    if (!first) return;
    clearTimeout(this.timer);
    const waitMs = Math.max(0, first.dueAt - performance.now());
    this.timer = window.setTimeout(() => void this.fetchFor(first), waitMs);
  }

  private async fetchFor(watched: Watched): Promise<void> {
    if (this.isFetching || document.hidden || !this.watched.has(watched)) return this.schedule();
    const abort = new AbortController();
    this.isFetching = true;
    this.current = { watched, abort };
    const { viewer } = watched;
    const beganAt = performance.now();
    let intervalMs = QUIET_INTERVAL_MS;
    try {
      const path = `/api/v1/latest/${encodeURIComponent(viewer.source)}?width=${viewer.width()}&format=binary`;
      const latest = latestOf(await getBytes(path, abort.signal));
      if (latest) {
        const event = `${latest.run} ${latest.event_text ?? latest.event}`;
        if (event !== watched.event) intervalMs = SOURCE_INTERVAL_MS;
        watched.event = event;
      }
      viewer.show(latest);
    } catch (error) {
      if (!abort.signal.aborted) viewer.fail(error instanceof RequestError ? error.message : String(error));
    } finally {
      watched.dueAt = beganAt + intervalMs;
      this.current = null;
      this.isFetching = false;
      this.schedule();
    }
  }
}
