// State of the page: the newest status of the service, which comes by one stream, and requests to the service.

import { COMMAND_NAMES } from "./api.ts";
import type { CommandName, Message, RunRecord, Status } from "./api.ts";
import { History } from "./history.ts";
import { historyOf, messageOf, recordsOf, statusOf } from "./read.ts";
import { getJson, postJson, RequestError } from "./service.ts";

/** Silence after which the values are shown as old. The service sends a status at least each second. */
const SILENCE_LIMIT_MS = 3_000;
/** Silence after which the page asks by itself: a stream may hang although the service lives. */
const PROBE_AFTER_MS = 2_000;
const WATCH_INTERVAL_MS = 500;
const FIRST_RETRY_MS = 1_000;
const MAX_RETRY_MS = 8_000;
const MAX_MESSAGES = 500;
const MAX_FAILURES = 20;

/** A request that failed: shown until it is dismissed. */
export interface Failure {
  id: number;
  what: string;
  reason: string;
}

export class Model {
  status: Status | null = null;
  messages: Message[] = [];
  runs: RunRecord[] = [];
  readonly history = new History();
  failures: Failure[] = [];
  /** Requests under way, by name: a command, or any other text. */
  readonly pending = new Set<string>();
  /** Reason to ask for a token, maybe empty; null while there is none. */
  login: string | null = null;
  /** Seconds since the last sign of the service; null where there is contact. */
  silentSeconds: number | null = null;

  private stream: EventSource | null = null;
  private contactAt = performance.now();
  /** The values are from before the page was hidden. */
  private isResuming = false;
  private isRefused = false;
  private isProbing = false;
  private retryMs = FIRST_RETRY_MS;
  private nextFailure = 1;
  private isDrawDue = false;
  private readonly messageKeys = new Set<string>();

  /** `draw` shows the model; it is called at most once in a frame. */
  constructor(private readonly draw: () => void) {}

  /** Begins with the token in the address, if there is one. */
  async begin(): Promise<void> {
    setInterval(() => this.watchContact(), WATCH_INTERVAL_MS);
    document.addEventListener("visibilitychange", () => this.followVisibility());
    addEventListener("hashchange", () => void this.useAddressToken());
    if (!(await this.useAddressToken())) this.openStream();
    this.redraw();
  }

  /** Whether the status is the present one. */
  isCurrent(): boolean {
    return this.status !== null && this.silentSeconds === null && !this.isResuming;
  }

  /** Reason why nothing can be changed now; empty where it can. */
  contactReason(): string {
    return this.isCurrent() ? "" : "there is no contact with the service";
  }

  /** Asks for a drawing in the next frame. */
  redraw(): void {
    if (this.isDrawDue) return;
    this.isDrawDue = true;
    requestAnimationFrame(() => {
      this.isDrawDue = false;
      this.draw();
    });
  }

  /** Gives the token to the service, which answers with a cookie. */
  async logIn(token: string): Promise<void> {
    try {
      await postJson("/api/v1/session", { token });
      this.login = null;
      this.contactAt = performance.now();
      this.openStream();
    } catch (error) {
      const isRefused = error instanceof RequestError && (error.status === 401 || error.status === 403);
      this.login = isRefused ? "The service does not know this token." : `${this.reasonOf(error)}.`;
    }
    this.redraw();
  }

  /** Sends a command. Returns whether it was accepted; if not, the reason is among the failures. */
  async command(name: CommandName, body: object): Promise<boolean> {
    const answer = await this.change(name, name, `/api/v1/commands/${name}`, body);
    const status = statusOf((answer as { status?: unknown } | null)?.status);
    if (status) this.take(status);
    return answer !== null;
  }

  /** Command that is under way, if one is. */
  pendingCommand(): CommandName | null {
    return COMMAND_NAMES.find((name) => this.pending.has(name)) ?? null;
  }

  /** Sends a request that changes something. Returns the answer, or null after a failure. */
  async change(key: string, what: string, path: string, body: object): Promise<unknown> {
    if (this.pending.has(key)) return null;
    this.pending.add(key);
    this.redraw();
    try {
      return (await postJson(path, body)) ?? {};
    } catch (error) {
      this.fail(what, this.reasonOf(error));
      if (error instanceof RequestError && error.status === 401) this.askForToken("");
      return null;
    } finally {
      this.pending.delete(key);
      this.redraw();
    }
  }

  dismiss(id: number): void {
    this.failures = this.failures.filter((failure) => failure.id !== id);
    this.redraw();
  }

  async loadRuns(): Promise<void> {
    try {
      this.runs = recordsOf(await getJson("/api/v1/runs?limit=50"));
      this.redraw();
    } catch (error) {
      this.noteReadFailure("the list of runs", error);
    }
  }

  private reasonOf(error: unknown): string {
    return error instanceof Error ? error.message : String(error);
  }

  private fail(what: string, reason: string): void {
    this.failures = [...this.failures, { id: this.nextFailure, what, reason }].slice(-MAX_FAILURES);
    this.nextFailure += 1;
  }

  /** Shows why something could not be read; without contact, that is known already. */
  private noteReadFailure(what: string, error: unknown): void {
    if (error instanceof RequestError && error.status === 0) return;
    if (error instanceof RequestError && error.status === 401) return this.askForToken("");
    this.fail(what, this.reasonOf(error));
    this.redraw();
  }

  private async useAddressToken(): Promise<boolean> {
    const token = new URLSearchParams(location.hash.slice(1)).get("token");
    if (token === null) return false;
    window.history.replaceState(null, "", location.pathname);
    await this.logIn(token);
    return true;
  }

  private askForToken(reason: string): void {
    this.closeStream();
    this.login = reason;
    this.redraw();
  }

  private openStream(): void {
    this.closeStream();
    if (document.hidden) return;
    const stream = new EventSource("/api/v1/events");
    this.stream = stream;
    stream.addEventListener("open", () => {
      this.retryMs = FIRST_RETRY_MS;
      void this.loadHistory();
      void this.loadRuns();
    });
    stream.addEventListener("status", (event) => {
      const status = statusOf(parseJson(event.data));
      if (status) this.take(status);
    });
    stream.addEventListener("message", (event) => {
      const message = messageOf(parseJson(event.data));
      if (message) this.takeMessages([message]);
    });
    stream.addEventListener("error", () => this.handleStreamError(stream));
  }

  private closeStream(): void {
    this.stream?.close();
    this.stream = null;
  }

  /** The browser connects again by itself after a broken connection, but not after a refusal. */
  private handleStreamError(stream: EventSource): void {
    if (stream !== this.stream) return;
    this.isRefused = true;
    this.watchContact();
    if (stream.readyState !== EventSource.CLOSED) return;
    this.closeStream();
    setTimeout(() => void this.reopen(), this.retryMs);
    this.retryMs = Math.min(MAX_RETRY_MS, 2 * this.retryMs);
    // A refusal for want of a token is answered at once.
    void this.probe();
  }

  private async reopen(): Promise<void> {
    if (this.stream === null && this.login === null) this.openStream();
  }

  /** Asks for a status once. */
  private async probe(): Promise<void> {
    if (this.isProbing) return;
    this.isProbing = true;
    try {
      const status = statusOf(await getJson("/api/v1/status"));
      const isAhead = status !== null && status.id !== this.status?.id;
      if (status) this.take(status);
      // The service has something new and its stream did not bring it.
      if (isAhead && this.stream?.readyState === EventSource.OPEN) this.openStream();
    } catch (error) {
      if (error instanceof RequestError && error.status === 401) this.askForToken("");
    } finally {
      this.isProbing = false;
    }
  }

  private watchContact(): void {
    if (this.login !== null || document.hidden) return;
    const silentMs = performance.now() - this.contactAt;
    const isSilent = silentMs > SILENCE_LIMIT_MS || this.isRefused;
    const before = this.silentSeconds;
    this.silentSeconds = isSilent ? Math.floor(silentMs / 1000) : null;
    if (silentMs > PROBE_AFTER_MS && this.stream?.readyState === EventSource.OPEN) void this.probe();
    if (before !== this.silentSeconds) this.redraw();
  }

  /** A hidden page needs nothing: it gives its connection back, of which a browser has few for each host. */
  private followVisibility(): void {
    if (this.login !== null) return;
    if (document.hidden) {
      this.closeStream();
      return;
    }
    if (this.isCurrent()) this.contactAt = performance.now();
    this.isResuming = true;
    this.watchContact();
    this.openStream();
    this.redraw();
  }

  private take(status: Status): void {
    const isSameService = status.service.since_at === this.status?.service.since_at;
    this.contactAt = performance.now();
    this.isRefused = false;
    this.isResuming = false;
    this.silentSeconds = null;
    if (isSameService && this.status && status.id < this.status.id) return;
    const isRunChanged =
      status.run?.number !== this.status?.run?.number ||
      status.last_run?.number !== this.status?.last_run?.number ||
      status.last_run?.state !== this.status?.last_run?.state;
    if (this.status && isRunChanged) void this.loadRuns();
    this.status = status;
    this.history.append(status, Date.now() / 1000);
    this.takeMessages(status.messages);
    this.redraw();
  }

  private takeMessages(messages: Message[]): void {
    const keyOf = (message: Message) => `${message.at} ${message.node} ${message.text}`;
    const added = messages.filter((message) => !this.messageKeys.has(keyOf(message)));
    if (added.length === 0) return;
    const all = [...this.messages, ...added].sort((a, b) => a.at - b.at).slice(-MAX_MESSAGES);
    this.messages = all;
    this.messageKeys.clear();
    for (const message of all) this.messageKeys.add(keyOf(message));
    this.redraw();
  }

  private async loadHistory(): Promise<void> {
    try {
      this.history.load(historyOf(await getJson("/api/v1/history?seconds=3600")), Date.now() / 1000);
      this.redraw();
    } catch (error) {
      this.noteReadFailure("the history", error);
    }
  }
}

function parseJson(text: unknown): unknown {
  try {
    return typeof text === "string" ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}
