// Troubles and alarms, and the sources that are missing in incomplete events.

import { useState } from "preact/hooks";
import type { Alarm, Status } from "../api.ts";
import type { Model } from "../model.ts";
import { Button, Dialog, Icon, Panel, SeverityMark } from "../parts.tsx";
import { formatCount, formatText, formatTime } from "../text.ts";
import { absenteesOf, troublesOf } from "../trouble.ts";
import type { Trouble } from "../trouble.ts";

const MAX_TROUBLES = 50;

function AcknowledgeDialog({ model, alarm, onClose }: { model: Model; alarm: Alarm; onClose: () => void }) {
  const submit = (fields: FormData) => {
    const why = String(fields.get("why") ?? "").trim();
    if (why === "") return "Others will want to know why.";
    const path = `/api/v1/alarms/${encodeURIComponent(alarm.id)}/acknowledge`;
    void model.change(`alarm ${alarm.id}`, "acknowledge", path, { why });
    return undefined;
  };
  return (
    <Dialog title="Acknowledge the alarm" confirm="Acknowledge" onConfirm={submit} onClose={onClose}>
      <p>{formatText(alarm.text)}</p>
      <label class="field">
        Why, or what is being done <input name="why" maxLength={500} autocomplete="off" autofocus />
      </label>
    </Dialog>
  );
}

function TroubleRow({ model, trouble, onAcknowledge }: { model: Model; trouble: Trouble; onAcknowledge: () => void }) {
  const { alarm } = trouble;
  return (
    <li class={`trouble ${trouble.severity} ${alarm?.is_acknowledged ? "known" : ""}`}>
      <SeverityMark severity={trouble.severity} />
      <p class="trouble-words">
        <strong class="subject">{trouble.subject}</strong>
        {trouble.where && <span class="where"> {trouble.where}</span>}: {formatText(trouble.text)}
        {alarm && <span class="where"> since {formatTime(alarm.since_at)}</span>}
      </p>
      {alarm &&
        (alarm.is_acknowledged ? (
          <span class="quiet">
            acknowledged by {formatText(alarm.acknowledged_by)}
            {alarm.why && `: ${formatText(alarm.why)}`}
          </span>
        ) : (
          <Button
            class="small"
            label="Acknowledge"
            reason={model.contactReason()}
            busy={model.pending.has(`alarm ${alarm.id}`)}
            onPress={onAcknowledge}
          />
        ))}
    </li>
  );
}

/** Alarms whose condition holds no more, the newest first. */
function PastAlarms({ status }: { status: Status }) {
  const past = status.alarms.filter((alarm) => alarm.is_active === false);
  if (past.length === 0) return null;
  return (
    <details class="past">
      <summary>
        {formatCount(past.length)} {past.length === 1 ? "alarm is" : "alarms are"} over
      </summary>
      <ul>
        {past.map((alarm, index) => (
          <li key={`${alarm.id} ${index}`}>
            {formatTime(alarm.since_at)}: {formatText(alarm.text)}
          </li>
        ))}
      </ul>
    </details>
  );
}

export function Wrong({ model, status }: { model: Model; status: Status }) {
  const [asked, setAsked] = useState<Alarm | null>(null);
  const troubles = troublesOf(status);
  const silenced = status.silenced_alarms;
  return (
    <Panel
      id="wrong"
      title="What is wrong"
      aside={silenced > 0 && <span class="mark minor">{formatCount(silenced)} silenced</span>}
    >
      {troubles.length === 0 ? (
        <p class="all-well">
          <span class="mark ok">
            <Icon name="check" /> nothing
          </span>
        </p>
      ) : (
        <ul class="troubles">
          {troubles.slice(0, MAX_TROUBLES).map((trouble, index) => (
            <TroubleRow
              key={`${trouble.subject} ${index}`}
              model={model}
              trouble={trouble}
              onAcknowledge={() => setAsked(trouble.alarm)}
            />
          ))}
        </ul>
      )}
      {troubles.length > MAX_TROUBLES && <p>and {formatCount(troubles.length - MAX_TROUBLES)} more</p>}
      <PastAlarms status={status} />
      {asked && <AcknowledgeDialog model={model} alarm={asked} onClose={() => setAsked(null)} />}
    </Panel>
  );
}

const SHOWN_EVENTS = 3;

export function Incomplete({ status }: { status: Status }) {
  const events = status.incomplete_events;
  const absentees = absenteesOf(status);
  const [isOpen, setIsOpen] = useState(false);
  const shown = isOpen ? events : events.slice(0, SHOWN_EVENTS);
  return (
    <Panel
      id="incomplete"
      title="Incomplete events"
      aside={<span class="big">{formatCount(status.totals.incomplete)}</span>}
    >
      {absentees.length > 0 && (
        <ul class="absentees">
          {absentees.map((absentee) => (
            <li key={absentee.source}>
              <strong class="subject">{absentee.source}</strong> <span class="where">{absentee.where}</span>
              <br />
              missing in {formatCount(absentee.events)} of the last {formatCount(events.length)}
            </li>
          ))}
        </ul>
      )}
      {events.length > 0 && (
        <>
          <ul class="events">
            {shown.map((event, index) => (
              <li key={`${event.builder} ${event.event_text} ${index}`}>
                event {formatCount(event.event, event.event_text)} without{" "}
                {event.missing.map((missing) => formatText(missing.source)).join(", ")}
              </li>
            ))}
          </ul>
          {events.length > SHOWN_EVENTS && (
            <button type="button" class="button small" aria-expanded={isOpen} onClick={() => setIsOpen(!isOpen)}>
              {isOpen ? "Show fewer" : `Show all ${events.length}`}
            </button>
          )}
        </>
      )}
      {events.length === 0 && <p class="quiet">none of late</p>}
    </Panel>
  );
}
