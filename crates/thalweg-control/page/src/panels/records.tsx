// Messages and runs.

import { useState } from "preact/hooks";
import type { Message, RunRecord, Status } from "../api.ts";
import type { Model } from "../model.ts";
import { Button, Cell, Choice, Dialog, Icon, Panel } from "../parts.tsx";
import type { IconName } from "../parts.tsx";
import { formatBytes, formatCount, formatSeconds, formatText, formatTime } from "../text.ts";

const LEVELS = ["all", "warnings", "errors"] as const;
type Level = (typeof LEVELS)[number];
const MAX_SHOWN = 100;

const MESSAGE_LOOK: Record<string, { icon: IconName; tone: string; rank: number }> = {
  info: { icon: "info", tone: "quiet", rank: 0 },
  warning: { icon: "minor", tone: "minor", rank: 1 },
  error: { icon: "major", tone: "major", rank: 2 },
};

function lookOf(message: Message) {
  return MESSAGE_LOOK[message.severity] ?? { icon: "info" as const, tone: "quiet", rank: 0 };
}

export function Messages({ messages }: { messages: Message[] }) {
  const [level, setLevel] = useState<Level>("all");
  const shown = messages
    .filter((message) => lookOf(message).rank >= LEVELS.indexOf(level))
    .slice(-MAX_SHOWN)
    .reverse();
  return (
    <Panel
      id="messages"
      title="Messages"
      aside={<Choice legend="messages to show" options={LEVELS} value={level} onChange={setLevel} />}
    >
      <ul class="messages" tabIndex={0} aria-label="Messages, newest first">
        {shown.map((message, index) => (
          <li key={`${message.at} ${index}`}>
            <span class={`mark ${lookOf(message).tone}`}>
              <Icon name={lookOf(message).icon} /> {formatText(message.severity)}
            </span>
            <span class="quiet">
              {formatTime(message.at)}
              {message.node && ` · ${formatText(message.node)}`}
              {typeof message.run === "number" && ` · run ${formatCount(message.run)}`}
            </span>
            <span class="message-text">{formatText(message.text)}</span>
          </li>
        ))}
      </ul>
      {shown.length === 0 && <p class="quiet">none</p>}
    </Panel>
  );
}

const RUN_LOOK: Record<string, { icon: IconName; tone: string }> = {
  complete: { icon: "check", tone: "ok" },
  running: { icon: "play", tone: "ok" },
  reserved: { icon: "circle", tone: "quiet" },
  incomplete: { icon: "minor", tone: "minor" },
  failed: { icon: "major", tone: "major" },
  lost: { icon: "major", tone: "major" },
};

const FLAG_LOOK: Record<string, { icon: IconName; tone: string }> = {
  good: { icon: "check", tone: "ok" },
  bad: { icon: "major", tone: "major" },
  unknown: { icon: "circle", tone: "quiet" },
};

type Flagging = "good" | "bad" | "unknown";

function FlagDialog({ model, run, onClose }: { model: Model; run: RunRecord; onClose: () => void }) {
  const [flag, setFlag] = useState<Flagging>(run.flag?.flag ?? "good");
  const submit = (fields: FormData) => {
    const why = String(fields.get("why") ?? "").trim();
    if (why === "" && flag !== "good") return "A flag that is not good needs a reason.";
    const what = `flag of run ${run.number}`;
    void model.change(what, what, `/api/v1/runs/${run.number}/flag`, { flag, why }).then(() => model.loadRuns());
    return undefined;
  };
  return (
    <Dialog title={`Flag run ${formatCount(run.number)}`} confirm="Set the flag" onConfirm={submit} onClose={onClose}>
      <Choice legend="flag" options={["good", "bad", "unknown"]} value={flag} onChange={setFlag} />
      <label class="field">
        Why <input name="why" maxLength={1000} autocomplete="off" defaultValue={run.flag?.why ?? ""} autofocus />
      </label>
    </Dialog>
  );
}

function NoteDialog({ model, run, onClose }: { model: Model; run: RunRecord; onClose: () => void }) {
  const submit = (fields: FormData) => {
    const text = String(fields.get("text") ?? "").trim();
    if (text === "") return "The note is empty.";
    const what = `note on run ${run.number}`;
    void model.change(what, what, `/api/v1/runs/${run.number}/note`, { text }).then(() => model.loadRuns());
    return undefined;
  };
  return (
    <Dialog
      title={`Note on run ${formatCount(run.number)}`}
      confirm="Add the note"
      onConfirm={submit}
      onClose={onClose}
    >
      <label class="field">
        Note <textarea name="text" rows={4} maxLength={4000} autofocus />
      </label>
    </Dialog>
  );
}

function RunRow({ model, run, onAsk }: { model: Model; run: RunRecord; onAsk: (what: "flag" | "note") => void }) {
  const look = RUN_LOOK[run.state] ?? { icon: "info" as const, tone: "quiet" };
  const flag = FLAG_LOOK[run.flag?.flag ?? "unknown"] ?? { icon: "circle" as const, tone: "quiet" };
  const away = model.contactReason();
  return (
    <tr role="row" data-run={run.number}>
      <th role="rowheader" scope="row">
        <span class="name">run {formatCount(run.number)}</span>{" "}
        <span class={run.kind === "test" ? "tag test" : "tag"}>{formatText(run.kind)}</span>
      </th>
      <Cell label="State">
        <span class={`mark ${look.tone}`}>
          <Icon name={look.icon} /> {formatText(run.state)}
        </span>
        {run.reasons.map((reason, index) => (
          <span class="where" key={index}>
            {reason}
          </span>
        ))}
      </Cell>
      <Cell label="Began">{formatTime(run.began_at)}</Cell>
      <Cell label="Lasted">{formatSeconds(run.seconds)}</Cell>
      <Cell label="Events">
        {formatCount(run.events)}
        {run.incomplete > 0 && <span class="where">{formatCount(run.incomplete)} incomplete</span>}
      </Cell>
      <Cell label="Data">{formatBytes(run.bytes)}</Cell>
      <Cell label="Flag">
        <span class={`mark ${flag.tone}`}>
          <Icon name={flag.icon} /> {formatText(run.flag?.flag ?? "unknown")}
        </span>
        {run.flag && (
          <span class="where">
            {run.flag.why} ({formatText(run.flag.by)})
          </span>
        )}
      </Cell>
      <Cell label="Notes" class="notes">
        {run.note && <span class="where">{run.note}</span>}
        {run.notes.map((note, index) => (
          <span class="where" key={index}>
            {formatText(note.text)} ({formatText(note.by)}, {formatTime(note.at)})
          </span>
        ))}
      </Cell>
      <Cell label="Change">
        <span class="row-buttons">
          <Button
            class="small"
            label="Flag"
            reason={away}
            title={`Flag run ${run.number} as good or bad`}
            onPress={() => onAsk("flag")}
          />
          <Button
            class="small"
            label="Note"
            reason={away}
            title={`Add a note to run ${run.number}`}
            onPress={() => onAsk("note")}
          />
        </span>
      </Cell>
    </tr>
  );
}

export function Runs({ model, status }: { model: Model; status: Status }) {
  const [asked, setAsked] = useState<{ run: RunRecord; what: "flag" | "note" } | null>(null);
  const close = () => setAsked(null);
  return (
    <Panel id="runs" title="Runs" aside={<span class="quiet path">{formatText(status.directory)}</span>}>
      <table role="table" class="cards runs">
        <thead role="rowgroup">
          <tr role="row">
            {["Run", "State", "Began", "Lasted", "Events", "Data", "Flag", "Notes", "Change"].map((label) => (
              <th role="columnheader" scope="col" key={label}>
                {label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {model.runs.map((run) => (
            <RunRow key={run.number} model={model} run={run} onAsk={(what) => setAsked({ run, what })} />
          ))}
        </tbody>
      </table>
      {model.runs.length === 0 && <p class="quiet">none yet</p>}
      {asked?.what === "flag" && <FlagDialog model={model} run={asked.run} onClose={close} />}
      {asked?.what === "note" && <NoteDialog model={model} run={asked.run} onClose={close} />}
    </Panel>
  );
}
