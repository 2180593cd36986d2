// Processes of the nodes, and the clocks of their hosts.

import { useEffect, useState } from "preact/hooks";
import { PROCESS_ACTIONS } from "../api.ts";
import type { Process, ProcessAction, Status } from "../api.ts";
import type { Model } from "../model.ts";
import { Button, Cell, Dialog, Icon, Panel } from "../parts.tsx";
import type { IconName } from "../parts.tsx";
import { linesOf } from "../read.ts";
import { getJson } from "../service.ts";
import { formatSeconds, formatText, formatTime } from "../text.ts";

const PROCESS_LOOK: Record<string, { icon: IconName; tone: string }> = {
  up: { icon: "check", tone: "ok" },
  starting: { icon: "turn", tone: "quiet" },
  down: { icon: "circle", tone: "quiet" },
  failed: { icon: "major", tone: "major" },
};

/** Reason why an action is not possible now; empty where it is. The service gives it. */
function reasonAgainst(model: Model, process: Process, action: ProcessAction): string {
  if (!model.isCurrent()) return model.contactReason();
  const { legal, reason } = process.actions[action] ?? { legal: false, reason: "" };
  return legal ? "" : reason || `the service has no action ${action}`;
}

function LogDialog({ node, onClose }: { node: string; onClose: () => void }) {
  const [text, setText] = useState("…");
  const load = () => {
    getJson(`/api/v1/processes/${encodeURIComponent(node)}/log?lines=100`)
      .then((answer) => setText(linesOf(answer).join("\n") || "The log is empty."))
      .catch((error: unknown) => setText(`The log cannot be read: ${error instanceof Error ? error.message : error}`));
  };
  useEffect(load, [node]);
  return (
    <Dialog title={`Log of ${node}, last 100 lines`} confirm="Close" onClose={onClose}>
      <pre class="log" tabIndex={0} aria-label={`log of ${node}`}>
        {text}
      </pre>
      <button type="button" class="button small" onClick={load}>
        Read again
      </button>
    </Dialog>
  );
}

type Asked = { node: string; action: "stop" | "restart" | "log" };

function ProcessRow(props: { model: Model; process: Process; onAsk: (action: Asked["action"]) => void }) {
  const { model, process, onAsk } = props;
  const look = PROCESS_LOOK[process.state] ?? { icon: "info" as const, tone: "quiet" };
  return (
    <tr role="row" data-process={process.node}>
      <th role="rowheader" scope="row">
        <span class="name">{process.node || "?"}</span>
        <span class="where">
          {formatText(process.kind)}, host {formatText(process.host)}
        </span>
      </th>
      <Cell label="State">
        <span class={`mark ${look.tone}`}>
          <Icon name={look.icon} /> {formatText(process.state)}
        </span>
      </Cell>
      <Cell label="Since">{formatTime(process.since_at)}</Cell>
      <Cell label="Process">
        {typeof process.pid === "number" ? String(process.pid) : "–"}
        <span class="where">{process.manager === "none" ? "by hand" : formatText(process.manager)}</span>
      </Cell>
      <Cell label="Last line" class="last-line">
        {formatText(process.last_line)}
      </Cell>
      <Cell label="Change">
        <span class="row-buttons">
          {PROCESS_ACTIONS.map((action) => (
            <Button
              key={action}
              class="small"
              label={action}
              title={`${action} ${process.node}`}
              reason={reasonAgainst(model, process, action)}
              busy={model.pending.has(`${action} ${process.node}`)}
              onPress={() => (action === "start" ? void send(model, process.node, action) : onAsk(action))}
            />
          ))}
          <Button class="small" label="log" title={`Log of ${process.node}`} onPress={() => onAsk("log")} />
        </span>
      </Cell>
    </tr>
  );
}

function send(model: Model, node: string, action: ProcessAction): Promise<unknown> {
  const what = `${action} ${node}`;
  return model.change(what, what, `/api/v1/processes/${encodeURIComponent(node)}/${action}`, {});
}

export function Processes({ model, status }: { model: Model; status: Status }) {
  const [asked, setAsked] = useState<Asked | null>(null);
  const close = () => setAsked(null);
  return (
    <Panel id="processes" title="Processes">
      <table role="table" class="cards processes">
        <thead role="rowgroup">
          <tr role="row">
            {["Node", "State", "Since", "Process", "Last line", "Change"].map((label) => (
              <th role="columnheader" scope="col" key={label}>
                {label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {status.processes.map((process, index) => (
            <ProcessRow
              key={`${process.node} ${index}`}
              model={model}
              process={process}
              onAsk={(action) => setAsked({ node: process.node, action })}
            />
          ))}
        </tbody>
      </table>
      {status.processes.length === 0 && <p class="quiet">none is known</p>}
      {asked?.action === "log" && <LogDialog node={asked.node} onClose={close} />}
      {asked && asked.action !== "log" && (
        <Dialog
          title={`${asked.action === "stop" ? "Stop" : "Restart"} ${asked.node}?`}
          confirm={`${asked.action === "stop" ? "Stop" : "Restart"} the process`}
          confirmClass="danger"
          onConfirm={() => void send(model, asked.node, asked.action as ProcessAction)}
          onClose={close}
        >
          <p>
            {status.run && asked.action === "stop"
              ? "A run is under way: this node's part of it may be lost."
              : status.run
                ? "A run is under way, and this process has no part in it."
                : "No run is under way."}
          </p>
        </Dialog>
      )}
    </Panel>
  );
}

export function Clocks({ status }: { status: Status }) {
  return (
    <Panel id="clocks" title="Clocks">
      <table class="clocks">
        <thead>
          <tr>
            <th scope="col">Node</th>
            <th scope="col">Synchronized</th>
            <th scope="col">Offset</th>
          </tr>
        </thead>
        <tbody>
          {status.clocks.map((clock, index) => (
            <tr key={`${clock.node} ${index}`}>
              <th scope="row">
                <span class="name">{formatText(clock.node)}</span>
                <span class="where">host {formatText(clock.host)}</span>
              </th>
              <td>
                {clock.is_synchronized === true ? (
                  <span class="mark ok">
                    <Icon name="check" /> yes
                  </span>
                ) : clock.is_synchronized === false ? (
                  <span class="mark minor">
                    <Icon name="minor" /> no
                  </span>
                ) : (
                  "unknown"
                )}
              </td>
              <td>{formatSeconds(clock.offset_seconds)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {status.clocks.length === 0 && <p class="quiet">none is known</p>}
    </Panel>
  );
}
