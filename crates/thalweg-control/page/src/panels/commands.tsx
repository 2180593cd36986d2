// Buttons of the commands, and what the next run will be.

import { useState } from "preact/hooks";
import { COMMAND_NAMES } from "../api.ts";
import type { CommandName, RunKind, Status } from "../api.ts";
import type { Model } from "../model.ts";
import { Button, Choice, Dialog, Icon } from "../parts.tsx";
import type { IconName } from "../parts.tsx";
import { formatBytes, formatCount, formatSeconds, formatText } from "../text.ts";

const COMMAND_LOOK: Record<CommandName, { label: string; icon: IconName; class: string; title: string }> = {
  configure: { label: "Configure", icon: "ready", class: "", title: "Read the topology; nodes connect" },
  arm: { label: "Arm", icon: "ready", class: "", title: "Check each host, and make all nodes ready for a run" },
  start: { label: "Start", icon: "play", class: "go", title: "Begin the next run, as described beside" },
  pause: { label: "Pause", icon: "pause", class: "", title: "Accept no more events until the run is resumed" },
  resume: { label: "Resume", icon: "play", class: "", title: "Accept events again" },
  next: { label: "Next run", icon: "next", class: "", title: "Begin the next run, as described beside, without a gap" },
  step: { label: "Step", icon: "up", class: "", title: "Put a labelled marker between two events, for scans" },
  stop: { label: "Stop", icon: "stop", class: "halt", title: "End the run at an event that all sources reached" },
  abort: { label: "Abort", icon: "cross", class: "danger", title: "End the run at once; asks before it does" },
};

/** Reason why a command cannot be given now; empty where it can. */
export function reasonAgainst(model: Model, name: CommandName): string {
  const status = model.status;
  if (!status || !model.isCurrent()) return model.contactReason();
  const { legal, reason } = status.commands[name] ?? { legal: false, reason: "" };
  if (!legal) return reason || `${name} is not possible in state ${formatText(status.state)}`;
  const pending = model.pendingCommand();
  // Whatever is under way, a run can be abandoned.
  if (pending && pending !== name && name !== "abort") return `${pending} is under way`;
  return "";
}

/** Returns the step that a form describes, or the reason why it is none. */
function stepOf(fields: FormData): { label: string; data: unknown } | string {
  const label = String(fields.get("label") ?? "").trim();
  const data = String(fields.get("data") ?? "").trim();
  if (label === "") return "A step needs a label.";
  try {
    return { label, data: data === "" ? null : JSON.parse(data) };
  } catch {
    return 'Data must be JSON, for example {"angle": 12.5}; or leave it empty.';
  }
}

function AbortDialog({ model, onClose }: { model: Model; onClose: () => void }) {
  const run = model.status?.run;
  return (
    <Dialog
      title={run ? `Abort run ${formatCount(run.number)}?` : "Abort?"}
      confirm="Abort the run"
      confirmClass="danger"
      onConfirm={() => void model.command("abort", {})}
      onClose={onClose}
    >
      <p>
        Abort ends the run at once. Fragments that are on the way are not recorded: they count as lost, and the run is
        incomplete. Stop ends the run in order.
      </p>
    </Dialog>
  );
}

function StepDialog({ model, onClose }: { model: Model; onClose: () => void }) {
  const submit = (fields: FormData) => {
    const step = stepOf(fields);
    if (typeof step === "string") return step;
    void model.command("step", step);
    return undefined;
  };
  return (
    <Dialog title="Step: a marker between two events" confirm="Set the marker" onConfirm={submit} onClose={onClose}>
      <label class="field">
        Label <input name="label" maxLength={200} autocomplete="off" autofocus />
      </label>
      <label class="field">
        Data, as JSON (may be empty) <textarea name="data" rows={3} spellcheck={false} />
      </label>
    </Dialog>
  );
}

/** The run that start would begin. */
function NextRun(props: {
  status: Status;
  kind: RunKind;
  note: string;
  onKind: (kind: RunKind) => void;
  onNote: (note: string) => void;
}) {
  const { status } = props;
  const left = status.disk.seconds_left;
  return (
    <div class="next-run">
      <p>
        next: <strong id="next-number">run {formatCount(status.next_number)}</strong> into{" "}
        <span class="path">{formatText(status.directory)}</span>
      </p>
      <p>
        disk: {formatBytes(status.disk.free_bytes)} free
        {typeof left === "number" && <>, full in {formatSeconds(left)}</>}
      </p>
      <div class="next-fields">
        <Choice
          legend="kind of the next run"
          options={["physics", "test"]}
          value={props.kind}
          onChange={props.onKind}
        />
        <label class="note-field">
          <span>note</span>
          <input
            value={props.note}
            maxLength={1000}
            autocomplete="off"
            placeholder="for the next run"
            onInput={(event) => props.onNote(event.currentTarget.value)}
          />
        </label>
      </div>
    </div>
  );
}

export function Commands({ model }: { model: Model }) {
  const status = model.status;
  const [kind, setKind] = useState<RunKind>("physics");
  const [note, setNote] = useState("");
  const [dialog, setDialog] = useState<"abort" | "step" | null>(null);
  const [hint, setHint] = useState<string | null>(null);
  if (!status) return null;
  const press = async (name: CommandName) => {
    if (name === "abort" || name === "step") return setDialog(name);
    const beginsRun = name === "start" || name === "next";
    if ((await model.command(name, beginsRun ? { kind, note } : {})) && beginsRun) setNote("");
  };
  return (
    <section class="commands" aria-label="Commands">
      <div class="command-side">
        <div class="buttons">
          {COMMAND_NAMES.filter((name) => status.commands[name]).map((name) => {
            const look = COMMAND_LOOK[name];
            return (
              <Button
                key={name}
                name={name}
                class={look.class}
                label={
                  <>
                    <Icon name={look.icon} /> {look.label}
                  </>
                }
                title={look.title}
                reason={reasonAgainst(model, name)}
                busy={model.pending.has(name)}
                onPress={() => void press(name)}
                onHint={(text) => setHint(text && `${look.label}: ${text}`)}
              />
            );
          })}
        </div>
        <p class="hint" id="hint">
          {hint ?? "\u00a0"}
        </p>
      </div>
      <NextRun status={status} kind={kind} note={note} onKind={setKind} onNote={setNote} />
      {dialog === "abort" && <AbortDialog model={model} onClose={() => setDialog(null)} />}
      {dialog === "step" && <StepDialog model={model} onClose={() => setDialog(null)} />}
    </section>
  );
}

export function Failures({ model }: { model: Model }) {
  return (
    <div class="failures" role="alert">
      {model.failures.map(({ id, what, reason }) => (
        <p key={id} class="failure">
          <Icon name="major" />
          <span>
            <strong>{what}:</strong> {reason}
          </span>
          <button type="button" class="button small" onClick={() => model.dismiss(id)} aria-label={`Dismiss: ${what}`}>
            Dismiss
          </button>
        </p>
      ))}
    </div>
  );
}
