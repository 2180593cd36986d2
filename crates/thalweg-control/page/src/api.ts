// Types of the service's interface. The service describes the same in /openapi.json.
//
// Counts are 64-bit numbers at the service: above 2^53 a number is rounded here, and the field of the same name with
// `_text` is exact. Times (`_at`) are seconds since 1970, UTC.

export type StateName =
  | "idle"
  | "configuring"
  | "configured"
  | "arming"
  | "armed"
  | "starting"
  | "running"
  | "pausing"
  | "paused"
  | "stopping"
  | "closing"
  | "error";

export const COMMAND_NAMES = ["configure", "arm", "start", "pause", "resume", "next", "step", "stop", "abort"] as const;
export type CommandName = (typeof COMMAND_NAMES)[number];

export type RunKind = "physics" | "test";
export type Severity = "ok" | "minor" | "major";
export type MessageSeverity = "info" | "warning" | "error";

/** Whether a command can be carried out now; if not, the reason. */
export interface Legality {
  legal: boolean;
  reason: string;
}

export interface Run {
  number: number;
  kind: RunKind;
  note: string;
  asked_at: number | null;
  began_at: number | null;
  seconds: number;
}

export interface Totals {
  events: number;
  events_text: string;
  incomplete: number;
  bytes: number;
  bytes_text: string;
  fragments: number;
  events_per_second: number;
  bytes_per_second: number;
  stalls: number;
  stalled_percent: number;
}

/** Buckets of accepted fragments; `accepted` is the sum of the others. */
export interface Ledger {
  accepted: number;
  built: number;
  rejected: number;
  dropped: number;
  lost_in_device: number;
  late: number;
  corrupt: number;
  lost: number;
  beyond_end: number;
  on_the_way: number;
}

export interface Source extends Ledger {
  name: string;
  id: string;
  host: string;
  address: string | null;
  link: string;
  is_linked: boolean;
  is_node_connected: boolean;
  has_ended: boolean;
  is_given_up: boolean;
  bytes_per_second: number;
  events_per_second: number;
  backlog: number;
  credit_bytes: number;
  owes_seconds: number;
  dead_percent: number | null;
  sent_again_bytes: number;
  bytes: number;
  silent_since_at: number | null;
  absent_events: number;
  severity: Severity;
  trouble: string;
}

export interface Builder {
  name: string;
  host: string;
  is_node_connected: boolean;
  state: string;
  events: number;
  incomplete: number;
  bytes_per_second: number;
  stalled_percent: number;
  disk: { free_bytes: number | null; seconds_left: number | null };
}

export interface MissingSource {
  source: string;
  host: string;
  address: string | null;
}

export interface IncompleteEvent {
  event: number;
  event_text: string;
  builder: string;
  missing: MissingSource[];
}

export interface Draining {
  left: number;
  of: number;
}

export interface Clock {
  node: string;
  host: string;
  offset_seconds: number | null;
  is_synchronized: boolean | null;
}

export interface Alarm {
  id: string;
  severity: Severity;
  text: string;
  since_at: number;
  is_acknowledged: boolean;
  acknowledged_by: string | null;
  why: string;
  is_active: boolean;
}

export interface Message {
  id: number;
  at: number;
  severity: MessageSeverity;
  node: string | null;
  run: number | null;
  text: string;
}

export const PROCESS_ACTIONS = ["start", "stop", "restart"] as const;
export type ProcessAction = (typeof PROCESS_ACTIONS)[number];

export interface Process {
  node: string;
  kind: string;
  host: string;
  pid: number | null;
  state: "up" | "down" | "starting" | "failed";
  since_at: number;
  manager: "child" | "ssh" | "systemd" | "slurm" | "none";
  last_line: string;
  /** Whether each action on it is legal now. */
  actions: Partial<Record<ProcessAction, Legality>>;
}

export interface Flag {
  flag: "good" | "bad" | "unknown";
  why: string;
  by: string;
  at: number;
}

export interface Note {
  text: string;
  by: string;
  at: number;
}

export interface RunRecord {
  number: number;
  kind: RunKind;
  note: string;
  /** Names of the sources that were left out. */
  left_out: string[];
  state: "reserved" | "running" | "complete" | "incomplete" | "failed" | "lost";
  reasons: string[];
  asked_at: number | null;
  began_at: number | null;
  stop_asked_at: number | null;
  ended_at: number | null;
  /** Duration as the builder reported it. */
  seconds: number | null;
  events: number;
  incomplete: number;
  bytes: number;
  asked_by: string;
  flag: Flag | null;
  notes: Note[];
  directory: string | null;
  /** Process of the builder that took the run. */
  process: string;
}

/** Everything that the page shows and does not ask for by itself. */
/** Where notices of alarms and runs are delivered to. */
export interface Destination {
  name: string;
  waiting: number;
  sent: number;
  left_out: number;
  /** Empty unless the last attempt did not succeed. */
  problem: string;
}

/** A service of run control. */
export interface ServiceInfo {
  host: string;
  version: string;
  since_at: number;
  url: string;
}

export interface Status {
  id: number;
  experiment: string;
  topology: string;
  service: ServiceInfo;
  state: StateName;
  sentence: string;
  waits_for: string[];
  reasons: string[];
  run: Run | null;
  last_run: RunRecord | null;
  next_number: number | null;
  /** Reason why no run can be given a number; empty if one can. */
  number_problem: string;
  /** Services of the experiment that are up, as far as etcd knows them. */
  services: ServiceInfo[];
  /** Names of the sources that are left out. */
  left_out: string[];
  directory: string;
  disk: { free_bytes: number | null; seconds_left: number | null };
  commands: Partial<Record<CommandName, Legality>>;
  totals: Totals;
  ledger: Ledger;
  sources: Source[];
  builders: Builder[];
  incomplete_events: IncompleteEvent[];
  draining: Draining | null;
  clocks: Clock[];
  alarms: Alarm[];
  silenced_alarms: number;
  destinations: Destination[];
  messages: Message[];
  processes: Process[];
}

export interface Waveform {
  name: string;
  /** Least and greatest sample of each column; null where none is finite. */
  min: (number | null)[];
  max: (number | null)[];
}

export interface Image {
  width: number;
  height: number;
  full_width: number;
  full_height: number;
  /** Row by row: 0 is `minimum`, 65535 is `maximum`. */
  pixels: Uint16Array;
  minimum: number;
  maximum: number;
}

/** Latest fragment of a source, reduced to what a screen can show. */
export interface Latest {
  source: string;
  run: number | null;
  event: number;
  event_text: string;
  bytes: number;
  kind: "waveform" | "image" | "features" | "bytes";
  is_simulated: boolean;
  waveforms: Waveform[];
  image: Image | null;
  features: Record<string, number>;
}

/** Series of one value each `step_seconds`; null where there is none. */
export interface HistoryRecord {
  step_seconds: number;
  at: number[];
  events_per_second: (number | null)[];
  bytes_per_second: (number | null)[];
  incomplete: (number | null)[];
  sources: Record<string, { bytes_per_second: (number | null)[]; backlog: (number | null)[]; lost: (number | null)[] }>;
}
